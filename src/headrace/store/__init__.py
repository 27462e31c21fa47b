"""Redis connection, embedded Valkey, the journal before it, and the calls that run the keyspace scripts.

`logs.py` implements the broker's port; how a batch is appended is one of `appends.py` (by the script, any Redis),
`direct.py` (without it) and `journaled.py` (acknowledged before it), each on top of the one before.
"""
