"""Counters and state of a running archive, without Spark."""
