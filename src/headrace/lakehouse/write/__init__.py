"""Commits to the Delta tables of archived topics, their maintenance, and their Iceberg mirror.

May import what `lakehouse` may import: no server, no Spark.
"""
