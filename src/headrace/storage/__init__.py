"""Redis connections, the embedded Valkey, and the data in Redis: logs, topics, groups and documents.

`storage.py` combines the parts. `logs/redis_logs.py` recovers and reads the logs that this server leads.
`logs/append.py` appends batches to their streams. `journal/acks.py` acknowledges small batches from the journal before
that, and `logs/replay.py` stores acknowledged batches again that Redis does not have.
"""
