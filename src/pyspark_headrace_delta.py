"""Let Spark find `format("headrace.delta")` by this module's name, without registration."""

from headrace.spark.sink.delta_sink import DeltaDataSource as DefaultSource

__all__ = ["DefaultSource"]
