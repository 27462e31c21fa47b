"""Administration of the broker: authorizer, users, audit log, quotas, logins, connections, producer ids."""
