"""Read a topic's archive, a Delta table, without Spark: for the server, and for Spark's readers.

Needs the extra `lake`, except for `catalog`.
"""
