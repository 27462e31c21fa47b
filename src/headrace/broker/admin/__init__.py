"""Administration: authorizer, users, quotas, audit log, connection limits.

May import neither a listener nor storage.
"""
