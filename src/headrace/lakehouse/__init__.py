"""Delta tables of archived topics: read, write, decode values, and report a running archive.

Knows no server and no Spark. Of storage it may import only the layout and the redis-py clients.
"""
