"""Create, write, commit and maintain Delta tables and their Iceberg mirror. No other layer does.

May import what `lakehouse` may import: no server, no Spark.
"""
