"""The group coordinator: groups with their runners and timers, OCI instances.

The rules are in the pure package `headrace.groups`.
"""
