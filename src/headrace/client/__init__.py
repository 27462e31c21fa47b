"""A small blocking Kafka client for commands, Spark and tests: whole record batches in, whole record batches out.

The usual clients hand out records one by one, in Python; here a batch stays bytes until it is decoded into Arrow. It
speaks to any Kafka broker through `protocol`, as the server does. May import the two layers below.
"""
