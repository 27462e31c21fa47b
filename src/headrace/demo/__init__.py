"""The demo: a year of flights through a consumer group into a lakehouse table, checked to the record.

Everything in it is a client of an API, as a user's programs would be: the server, the readers and Spark are processes
of their own. This package starts them, watches them through the Kafka listener and compares what they report.
"""
