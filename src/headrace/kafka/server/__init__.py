"""Server side of the Kafka protocol: listener, connections, request scheduling, ordered responses.

It may import what `kafka` may import. Only the listener imports `kafka.apis`.
"""
