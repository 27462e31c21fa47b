"""Authorization, quotas and TLS.

Knows no broker, listener or storage: it may import only `records`, `text` and `aio`. `access` and `quotas` are pure.
"""
