"""Logs in Redis: recover, append, read, replay the journal, wait for replicas.

Implements `broker.ports.LogStorage`. May import what `storage` may, and not the broker.
"""
