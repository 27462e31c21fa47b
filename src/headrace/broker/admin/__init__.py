"""Administration: authorizer, users, quotas, audit log, connection limits."""
