"""The running server: clock, timers, waiters, one runner per group, retention, access."""
