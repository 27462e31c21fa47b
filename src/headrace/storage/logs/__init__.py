"""Logs in Redis: open, append, read, restore, replay of the journal, replicas."""
