"""A small blocking Kafka client for commands, Spark and tests, which reads and writes whole record batches.

Other clients return single Python records; here a batch stays bytes until it is decoded into Arrow. May import the two
layers below.
"""
