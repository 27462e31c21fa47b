"""The demo: a year of flights through a consumer group into a lakehouse table, with every figure verified.

Server, consumers and Spark are separate processes that use only public APIs.
"""
