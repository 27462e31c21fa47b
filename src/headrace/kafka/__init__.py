"""The Kafka protocol: listener and connections in `server`, one module per API in `apis`.

`headrace.protocol` encodes the messages. This package may import the broker and lower layers, but not storage or
client.
"""
