"""A small blocking Kafka client for Spark's driver and tasks: whole record batches in, whole record batches out.

The usual clients hand out records one by one, in Python; here a batch stays bytes until it is decoded into Arrow. It
speaks to any Kafka broker by the codec that the server uses.
"""
