"""Server side of the Kafka protocol. It may import what `kafka` may.

Only the listener and the in-process client import `kafka.apis`.
"""
