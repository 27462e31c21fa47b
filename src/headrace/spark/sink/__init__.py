"""Sinks without a JAR: `format("headrace")` writes topics, `format("headrace.delta")` writes Delta tables by delta-rs.

`sink.py` writes topics at least once, and `exactly_once.py` exactly once, with the decisions of `decision.py`.
"""
