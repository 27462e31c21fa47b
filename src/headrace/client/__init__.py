"""A small blocking Kafka client for commands, Spark and tests, which reads and writes whole record batches.

Batches stay bytes until they are decoded into Arrow. May import the two layers below.
"""
