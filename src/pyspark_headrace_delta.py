"""Spark finds `format("headrace.delta")` through this module's name; nothing has to be registered."""

from headrace.spark.delta.source import DeltaDataSource as DefaultSource

__all__ = ["DefaultSource"]
