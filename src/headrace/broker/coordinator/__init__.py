"""The group coordinator: groups with their runners and timers, OCI instances, lag.

The rules are those of the pure package `headrace.groups`. May import what `broker` may import.
"""
