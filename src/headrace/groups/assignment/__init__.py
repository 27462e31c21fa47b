"""Owners and targets of partitions in a group, for members of every kind.

`holdings` has owners and targets. `assignors` compute targets. Both are pure, without requests, timers or clients.
"""
