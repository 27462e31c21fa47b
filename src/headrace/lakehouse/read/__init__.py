"""Read a topic's archive, a Delta table, without Spark.

Needs the extra `lake`, except for `catalog`.
"""
