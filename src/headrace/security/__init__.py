"""Authorization, quotas and TLS. It may import only `records`, `text` and `aio`."""
