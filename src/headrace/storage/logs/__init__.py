"""Logs in Redis: recover, append, read, restore, replay the journal, wait for replicas.

Implements `broker.ports.LogStorage`. May import what `storage` may import, and not the broker.
"""
