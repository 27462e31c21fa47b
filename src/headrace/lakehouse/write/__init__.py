"""Create, write, commit and maintain Delta tables and their Iceberg mirror. No other layer does.

May import neither server nor Spark.
"""
