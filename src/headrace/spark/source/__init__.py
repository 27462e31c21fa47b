"""`format("headrace")` for reading: the data source, streams, tasks, and the logs that they read.

Reads Redis by `storage.layout`, or any Kafka broker by `client`. May import what `spark` may import: no broker, no
listener.
"""
