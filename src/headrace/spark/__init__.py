"""Spark: the `headrace` format (batch and streaming), group offsets of queries, the lakehouse archive."""

from headrace.spark.source.groups import ConsumerGroupListener, commit_groups

__all__ = ["ConsumerGroupListener", "commit_groups"]
