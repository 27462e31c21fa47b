"""Redis connection, embedded Valkey, and what lies in the Redis: logs, topics, groups, documents.

`storage.py` puts it together. `logs/open.py` opens the logs that this server owns and reads them, `logs/append.py` puts
batches into their streams, `journal/acks.py` acknowledges small ones from the journal before that, and
`logs/restore.py` stores again what was acknowledged and is missing.
"""
