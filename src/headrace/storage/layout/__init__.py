"""How a topic lives in Redis: keys, entries, offset <-> entry id, server-side scripts, layout version. Pure.

Written up for people in `docs/keyspace.md`, pinned by the golden files of `tests/storage/layout`. Spark and the server
share this room: nothing else knows a key or a field name.
"""

LAYOUT_VERSION = 2
"""Raised when a change would make an older Headrace misread what is stored."""
