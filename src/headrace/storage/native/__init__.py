"""Native topics in Redis: appends, reads, trims, and the wait for new entries.

Implements `broker.log_ports.NativeStorage`. Must not import the broker.
"""
