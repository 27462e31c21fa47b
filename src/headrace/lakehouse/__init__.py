"""Read and write the Delta tables of archived topics, decode values, and report a running archive.

May import only the storage layout and the redis-py clients.
"""
