"""Batches as logs take them, once they were checked."""

from headrace.records.build import build
from headrace.topics.model import Append


def batch(count: int = 1, timestamp: int = 1_000) -> Append:
    made = build([(None, b"value", timestamp, ())] * count)
    return Append(made, count, timestamp)


def sent(sequence: int, count: int = 1, epoch: int = 0, producer: int = 7) -> Append:
    records = [(None, b"value", 1_000, ())] * count
    made = build(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return Append(made, count, 1_000, producer, epoch, sequence)
