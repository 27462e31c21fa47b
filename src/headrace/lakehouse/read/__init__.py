"""Reads a topic's archive, a Delta table, without Spark: for the server, and for Spark's own readers.

Needs the extra `lake`; only `catalog` can be imported without it.
"""
