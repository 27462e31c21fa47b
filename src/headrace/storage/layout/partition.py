"""State of a log next to its stream: the state hash, and the hash of its producers."""

from collections.abc import Sequence

from headrace.topics.leader_epochs import EpochRow, LeaderEpochs
from headrace.topics.producer_state import ProducerStateEntry, SentBatch


def epochs(rows: bytes) -> LeaderEpochs:
    """Parse rows `<leader epoch>:<first offset>:<term>`. Raises ValueError."""
    return LeaderEpochs([EpochRow(*map(int, row.split(b":"))) for row in rows.split()])


def extent(answer: Sequence[bytes | None]) -> tuple[int, int, LeaderEpochs | None]:
    """Return log start offset, next offset and leader epochs from the script `extent`.

    A partition without a leader so far is empty and has no epochs.
    """
    start, snapshot, rows, last_id = answer[:4]
    if start is None or rows is None:
        return 0, 0, None
    found = epochs(rows)
    last = int(last_id.partition(b"-")[2]) if last_id else 0
    return int(start), max(last, int(start), int(snapshot or 0), found.rows[-1].first), found


def high_watermark(answer: Sequence[bytes | None]) -> int:
    """Return the stored high watermark from the script `extent`, or 0."""
    return int(answer[4] or 0)


def encode_producer(known: ProducerStateEntry) -> bytes:
    """Encode epoch, last use, then first and last sequence and base offset of up to five batches, newest first."""
    numbers = [known.epoch, known.last_use_ms, *(number for batch in known.batches for number in batch)]
    return b" ".join(b"%d" % number for number in numbers)


def decode_producer(value: bytes) -> ProducerStateEntry:
    """Raises ValueError."""
    epoch, last_use_ms, *rest = map(int, value.split())
    batches = tuple(SentBatch(*rest[place : place + 3]) for place in range(0, len(rest), 3))
    return ProducerStateEntry(epoch, batches, last_use_ms)
