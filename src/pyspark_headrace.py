"""Spark finds `format("headrace")` through this module's name; nothing has to be registered."""

from headrace.spark.source.source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
