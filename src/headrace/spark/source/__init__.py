"""Read with `format("headrace")`: the data source, streams, tasks, and access to logs.

Reads Redis through `storage.layout`, or any Kafka broker through `client`. May import no broker and no listener.
"""
