"""How a topic lives in Redis: keys, entries, offset <-> entry id, server-side scripts, layout version. Pure.

Described in `docs/keyspace.md`, and pinned by the golden files of `tests/storage/layout`. Spark, the lakehouse and the
server share this package. No code outside it spells a key or a field name.
"""

LAYOUT_VERSION = 2
"""Raised when a change would make an older Headrace misread what is stored."""
