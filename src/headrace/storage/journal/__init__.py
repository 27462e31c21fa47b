"""The write-ahead journal of an embedded Valkey: batches that are acknowledged before Redis has them.

May import what `storage` may import, and not the broker.
"""
