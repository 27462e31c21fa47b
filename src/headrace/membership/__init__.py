"""Cluster membership: the live brokers of a keyspace, and the owner of each key.

Pure: time and responses are arguments.
"""
