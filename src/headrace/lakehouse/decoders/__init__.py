"""Decode values into columns of typed tables."""
