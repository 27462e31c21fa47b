"""The server side of the Kafka protocol: listener, connections, scheduling of requests, responses in order.

May import what `kafka` may import: the broker, and no storage. Of `kafka.apis` only the listener imports anything.
"""
