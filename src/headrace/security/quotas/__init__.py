"""Quotas: entities, selection, and throttle times. Pure."""
