"""Hostile requests beside a client that pings: what one costs the others, in time and in memory."""
