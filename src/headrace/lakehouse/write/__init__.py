"""Writes and maintains the Delta tables of archived topics, and their Iceberg mirror."""
