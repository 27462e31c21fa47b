"""The Kafka protocol in the server: listener and connections in `server`, one file per API in `apis`.

The messages as bytes are in `headrace.protocol`. May import the broker and the layers below it, but not storage or
client.
"""
