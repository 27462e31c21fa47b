"""A small blocking Kafka client for commands, Spark and tests, which reads and writes whole record batches.

May import the two layers below.
"""
