"""Quotas: whom they are for, which of them holds, and the clockwork that says how long somebody has to wait. Pure."""
