"""The embedded Valkey: process, data directory, append-only file, health.

May import what `storage` may, and not the broker.
"""
