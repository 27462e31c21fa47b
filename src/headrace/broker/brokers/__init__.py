"""Membership, ownership, leadership, metadata changes and remote reads of a broker in a cluster.

Decisions are in the pure package `headrace.membership`.
"""
