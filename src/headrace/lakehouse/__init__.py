"""Read and write the Delta tables of archived topics, decode values, and report a running archive.

This package knows no server and no Spark. It may import only the storage layout and the redis-py clients.
"""
