"""Producer sequences: whether the next batch of an idempotent producer may enter a partition. Pure.

The server asks Redis, where the check is one with the append (`keyspace/lua/append.lua`). This is the same rule where
it can be read and tried; a state machine in `tests/properties` holds the two together.

Kafka's rule: a partition knows a producer by its epoch and its last five batches. A producer it does not know may begin
anywhere. In the same epoch a batch continues where the last one ended, or is one of the five once more: then it gets
the offset it got the first time. A higher epoch begins with sequence 0; a lower one is over.
"""

from typing import NamedTuple

import msgspec

from headrace.topics.errors import InvalidProducerEpoch, OutOfOrderSequence

REMEMBERED = 5
"""Batches known per producer: as many as a client may have under way at once (KIP-98)."""
SEQUENCES = 2**31
"""Sequences wrap to 0 here."""


class SentBatch(NamedTuple):
    """A batch that was appended: its first and last sequence and its base offset."""

    first: int
    last: int
    base_offset: int


class Producer(msgspec.Struct, frozen=True):
    """What a partition knows of a producer."""

    epoch: int
    batches: tuple[SentBatch, ...]
    """At most five, the newest first; never empty."""


def last_of(first: int, span: int) -> int:
    """The last sequence of a batch with `span` records that begins with `first`."""
    return (first + span - 1) % SEQUENCES


def find_duplicate(known: Producer | None, epoch: int, first: int, span: int) -> SentBatch | None:
    """The batch that this one repeats; None when it is new and may be appended.

    Raises:
        InvalidProducerEpoch: the producer's epoch is over.
        OutOfOrderSequence: neither the next sequence nor one of the batches remembered.
    """
    if known is None:
        return None
    if epoch < known.epoch:
        raise InvalidProducerEpoch(f"producer epoch {epoch} is over, now {known.epoch}")
    if epoch > known.epoch:
        if first != 0:
            raise OutOfOrderSequence(f"a new producer epoch begins with sequence 0, found {first}")
        return None
    expected = (known.batches[0].last + 1) % SEQUENCES
    if first == expected:
        return None
    last = last_of(first, span)
    for batch in known.batches:
        if (batch.first, batch.last) == (first, last):
            return batch
    raise OutOfOrderSequence(f"expected {expected}, found {first}")


def remember(known: Producer | None, epoch: int, first: int, span: int, base_offset: int) -> Producer:
    """What is known of a producer once a batch of it, found to be new, lies at `base_offset`."""
    newest = SentBatch(first, last_of(first, span), base_offset)
    older = known.batches[: REMEMBERED - 1] if known is not None and known.epoch == epoch else ()
    return Producer(epoch, (newest, *older))
