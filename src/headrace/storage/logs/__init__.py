"""Logs in Redis: recover, append, read, replay the journal, wait for replicas.

Implements `broker.log_ports.LogStorage`. Must not import the broker.
"""
