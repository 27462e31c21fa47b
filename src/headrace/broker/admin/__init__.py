"""Administration of the broker: authorizer, users, quotas, audit log, logins, connection limits.

May import what `broker` may import: no listener, no storage.
"""
