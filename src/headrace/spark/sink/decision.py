"""Decide about the transactions of a batch, as pure functions: what is stored, and in which order.

A batch of a query is written by many transactions, one for each task. One decision, stored in Kafka, says that all of
them are to be committed. It is the committed offset of a group, with metadata, in a few partitions of the topic.
"""

import enum
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import UUID

from headrace.client.errors import BatchLost, DecisionError

METADATA_CHARACTERS: Final = 4096
"""Kafka's default of `offset.metadata.max.bytes`."""
SUFFIX_BYTES: Final = 8
_NAME: Final = "headrace-sink"
_HEADER_CHARACTERS: Final = 64
_PAYLOAD_CHARACTERS: Final = METADATA_CHARACTERS - _HEADER_CHARACTERS
_PART: Final = re.compile(rf"{_NAME} 1 (\d{{1,6}})/(\d{{1,6}}) ([0-9a-f]{{8}}) ([A-Za-z0-9+/]*={{0,2}})", re.ASCII)
_LONGEST_NUMBER: Final = 10
"""Bytes of a number below 2^63, 7 bits each."""
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Participant:
    """One task's transaction, which is ready to be committed."""

    suffix: bytes
    """What its transactional ID has after the sink's; see `transactional_id`."""
    producer_id: int
    producer_epoch: int
    version: int
    """Of the transaction protocol: 1 (KIP-98) or 2 (KIP-890)."""
    rows: int

    def transactional_id(self, sink: str) -> str:
        """Return the transactional ID."""
        return transactional_id(sink, self.suffix)


@dataclass(frozen=True)
class Decision:
    """What is decided."""

    done: int
    """First batch that is not done: the batches before it are in the topic, or will be with the participants."""
    query: UUID
    """The query that counts these batches."""
    participants: tuple[Participant, ...] = ()
    """Transactions of batch `done - 1` to commit. Without any, the decision is complete."""


def transactional_id(sink: str, suffix: bytes) -> str:
    """Return the transactional ID of a task."""
    return f"{sink}/{suffix.hex()}"


def is_of_sink(name: str, sink: str) -> bool:
    """Return whether a transactional ID is one of a sink's tasks."""
    prefix, _, suffix = name.rpartition("/")
    return prefix == sink and re.fullmatch(rf"[0-9a-f]{{{2 * SUFFIX_BYTES}}}", suffix) is not None


def encode(decision: Decision, partitions: int) -> list[str]:
    """Return the metadata for partitions 0, 1, ... of the topic.

    Raises:
        DecisionError: The topic has too few partitions for that many transactions.
    """
    data = bytearray(decision.query.bytes)
    for one in decision.participants:
        data += one.suffix
        for number in (one.producer_id, one.producer_epoch, one.rows << 1 | (one.version - 1)):
            data += _number(number)
    text = b64encode(data).decode()
    pieces = [text[at : at + _PAYLOAD_CHARACTERS] for at in range(0, len(text), _PAYLOAD_CHARACTERS)]
    if len(pieces) > partitions:
        raise DecisionError(
            f"the batch has {len(decision.participants)} transactions: committing them at once takes a topic of "
            f"{len(pieces)} partitions, and this one has {partitions}. Add partitions, or repartition the rows to "
            "fewer tasks"
        )
    check = _check(decision.done, data)
    return [f"{_NAME} 1 {index}/{len(pieces)} {check:08x} {piece}" for index, piece in enumerate(pieces)]


def decode(stored: Mapping[int, tuple[int, str]], sink: str) -> Decision | None:
    """Return the decision in committed offsets and metadata by partition; None if there is none.

    Later partitions may still hold parts of earlier, longer decisions.

    Raises:
        DecisionError: The offsets are others', or parts are missing.
    """
    if not stored:
        return None
    done, first = stored.get(0, (0, ""))
    found = _PART.fullmatch(first)
    if found is None:
        raise DecisionError(
            f"group {sink!r} has committed offsets that are no sink's: choose another 'transactionalId'"
        )
    parts = [_PART.fullmatch(stored.get(index, (0, ""))[1]) for index in range(int(found[2]))]
    whole = "".join(part[4] for part in parts if part is not None)
    try:
        data = b64decode(whole, validate=True)
        decision = Decision(done, UUID(bytes=data[:16]), tuple(_participants(data[16:])))
    except (ValueError, IndexError):
        data, decision = b"", None
    if decision is None or found[1] != "0" or _check(done, data) != int(found[3], 16):
        raise DecisionError(
            f"the offsets of group {sink!r} hold a part of a decision only: it is unknown whether batch "
            f"{done - 1} is written. Compare the topic with the source, delete the group and start with a new "
            "checkpoint"
        )
    return decision


def _check(done: int, data: bytes | bytearray) -> int:
    return zlib.crc32(data, zlib.crc32(done.to_bytes(8, "big")))


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _participants(data: bytes) -> Generator[Participant, None, None]:
    position = 0

    def number() -> int:
        nonlocal position
        value = 0
        for shift in range(0, 7 * _LONGEST_NUMBER, 7):
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number is too long")

    while position < len(data):
        suffix = data[position : position + SUFFIX_BYTES]
        position += SUFFIX_BYTES
        producer_id, epoch, rows = number(), number(), number()
        yield Participant(suffix, producer_id, epoch, (rows & 1) + 1, rows >> 1)


class Outcome(enum.Enum):
    """The end of a transaction, after a request to commit it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """The coordinator has forgotten the transactional ID."""


@dataclass(frozen=True)
class Store:
    """Step: store the decision, in a transaction that a fenced driver cannot end."""

    decision: Decision


@dataclass(frozen=True)
class CommitAll:
    """Step: commit these transactions. Its result is the outcome of each, in their order."""

    participants: tuple[Participant, ...]


Steps = Generator[Store | CommitAll, Sequence[Outcome], _Result]


def commit(
    batch: int,
    query: UUID,
    participants: Sequence[Participant],
    places: Mapping[Participant, str],
    ongoing: Collection[Participant] | None = None,
) -> Steps[None]:
    """Commit a batch: decide, then complete.

    Args:
        batch: its number.
        query: the query that counts it.
        participants: its transactions.
        places: names the partitions of a transaction, for errors.
        ongoing: those of them that are not aborted yet; None: unknown.

    Raises:
        BatchLost: Transactions were aborted, by their timeout, before they were committed.
    """
    if ongoing is not None and len(ongoing) < len(participants):
        # If a later driver has aborted them, this one is fenced here.
        yield Store(Decision(batch, query))
        raise BatchLost(_of_nothing(batch, len(participants) - len(ongoing), len(participants)))
    decision = Decision(batch + 1, query, tuple(participants))
    yield Store(decision)
    if not (yield from finish(decision, places)):
        raise BatchLost(_of_nothing(batch, len(participants), len(participants)))


def _of_nothing(batch: int, lost: int, count: int) -> str:
    return (
        f"batch {batch}: {lost} of its {count} transactions were aborted, by their timeout, before they were "
        "committed. Nothing of the batch is in the topic; restart the query to write it again. If a batch takes that "
        "long, set option 'kafka.transaction.timeout.ms'"
    )


def finish(decision: Decision, places: Mapping[Participant, str] | None = None) -> Steps[bool]:
    """Complete a decision; return whether its batch is written. Otherwise the decision was taken back.

    Raises:
        BatchLost: A part of the batch is committed, and a part of it was aborted. The decision stays.
    """
    outcomes = yield CommitAll(decision.participants)
    lost = [
        (one, outcome)
        for one, outcome in zip(decision.participants, outcomes, strict=True)
        if outcome is not Outcome.COMMITTED
    ]
    batch = decision.done - 1
    if not lost:
        yield Store(Decision(decision.done, decision.query))
        return True
    if len(lost) == len(decision.participants) and {outcome for _, outcome in lost} == {Outcome.ABORTED}:
        yield Store(Decision(batch, decision.query))
        return False
    raise BatchLost(_of_lost(batch, decision.participants, lost, places or {}))


_NAMED: Final = 20
"""Transactions that an error names."""


def _of_lost(
    batch: int,
    participants: Collection[Participant],
    lost: Sequence[tuple[Participant, Outcome]],
    places: Mapping[Participant, str],
) -> str:
    named = "; ".join(
        f"{one.rows} rows{f' for {places[one]}' if one in places else ''} (producer id {one.producer_id}, "
        f"epoch {one.producer_epoch}: {outcome.value})"
        for one, outcome in lost[:_NAMED]
    )
    more = f"; and {len(lost) - _NAMED} more transactions" if len(lost) > _NAMED else ""
    return (
        f"batch {batch} is written in part: {len(lost)} of its {len(participants)} transactions were not committed. "
        f"Not in the topic, or not known to be: {named}{more}. To write the whole batch again, with duplicates of its "
        "committed rows, delete the sink's group and restart the query"
    )
