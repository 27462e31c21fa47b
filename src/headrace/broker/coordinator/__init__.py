"""Coordinators of groups and of transactions: runners and timers, OCI instances, ends of transactions on all brokers.

The rules are in the pure packages `headrace.groups` and `headrace.transactions`.
"""
