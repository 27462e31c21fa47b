"""Spark finds `format("headrace.delta")` through this module's name; nothing has to be registered."""

from headrace.spark.sink.delta_sink import DeltaDataSource as DefaultSource

__all__ = ["DefaultSource"]
