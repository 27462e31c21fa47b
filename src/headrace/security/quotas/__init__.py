"""Quotas: their entities, which one applies, and how long a client has to wait. Pure."""
