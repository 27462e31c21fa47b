"""The topics of the running server: table, changes by other brokers, retention, offline partitions.

May import what `broker` may import: no listener, no storage.
"""
