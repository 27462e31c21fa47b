"""Requests between the brokers of a keyspace: HTTP with signatures that only brokers can create."""
