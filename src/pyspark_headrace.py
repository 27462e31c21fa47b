"""Let Spark find `format("headrace")` by this module's name, without registration."""

from headrace.spark.source.source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
