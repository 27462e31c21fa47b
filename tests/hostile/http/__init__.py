"""Hostile requests next to a client that pings: the cost to other clients, in time and in memory."""
