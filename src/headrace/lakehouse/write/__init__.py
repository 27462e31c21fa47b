"""The one layer that creates, writes and commits to Delta tables, their maintenance, and their Iceberg mirror.

May import what `lakehouse` may import: no server, no Spark.
"""
