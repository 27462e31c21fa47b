"""Native topics in Redis: appends, reads, trims, and the wait for new entries.

Implements `broker.ports.NativeStorage`. May import what `storage` may, and not the broker.
"""
