"""The embedded Valkey: process, data directory, append-only file, health.

Must not import the broker.
"""
