"""Logs in Redis: recover, append, read, replay the journal, wait for replicas.

Implements `broker.ports.LogStorage`. Must not import the broker.
"""
