"""Which member of a group has which partitions, for members of every kind.

`holdings` knows owners and targets. `assignors` compute targets. Both are pure and know no requests, timers or clients.
"""
