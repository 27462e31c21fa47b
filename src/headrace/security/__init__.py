"""Authorization, quotas and TLS.

It may import only `records`, `text` and `aio`. `access` and `quotas` are pure.
"""
