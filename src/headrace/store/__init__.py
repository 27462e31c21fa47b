"""Redis connection, embedded Valkey, and what lies in the Redis: logs, topics, groups, documents.

`storage.py` puts it together. `logs.py` opens the logs that this server owns and reads them, `placing.py` puts batches
into their streams, `early.py` acknowledges small ones from the journal before that, and `restoring.py` stores again
what was acknowledged and is missing.
"""
