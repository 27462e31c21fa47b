"""Signed HTTP requests between the brokers of a keyspace."""
