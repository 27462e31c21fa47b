"""The embedded Valkey: process, data directory, append-only file, health."""
