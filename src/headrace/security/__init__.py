"""Who may do what: ACLs and principals, TLS, quotas. Knows no broker, no listener and no storage."""
