"""Spark: batch and streaming source, archive into a lakehouse table."""
