"""One broker among others: membership, ownership, leadership, metadata changes, locks, reads from remote leaders.

The decisions are those of the pure package `headrace.membership`. May import what `broker` may import.
"""
