"""The running broker: topics, partitions, groups, membership and administration, for every API.

Knows no protocol and no Redis: `ports` lists what it requires of its storage.
"""
