"""Native topics in Redis: appends, reads, trims, and waiting for entries."""
