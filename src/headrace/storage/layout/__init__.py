"""Layout of topics in Redis: keys, entries, ids, server-side scripts, layout version. Pure.

See `docs/keyspace.md`. Golden files in `tests/storage/layout` pin it. No other code contains names of keys or fields.
"""

LAYOUT_VERSION = 2
"""Raised with each change that an older Headrace would misread."""
TRANSACTIONS_LAYOUT_VERSION = 3
"""Replaces it before the first transactional batch: an older Headrace would show uncommitted records."""
