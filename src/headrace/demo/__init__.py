"""The demo: a year of flights through a consumer group into a lakehouse table, with every figure verified.

Its processes use only public APIs.
"""
