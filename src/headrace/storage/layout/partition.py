"""What lies beside a log's stream: the state hash, and the hash of its producers."""

from collections.abc import Sequence

from headrace.topics.leader_epochs import EpochRow, LeaderEpochs
from headrace.topics.producer_state import ProducerStateEntry, SentBatch


def epochs(rows: bytes) -> LeaderEpochs:
    """The rows `<leader epoch>:<first offset>:<term>`, separated by spaces. Raises ValueError for something else."""
    return LeaderEpochs([EpochRow(*map(int, row.split(b":"))) for row in rows.split()])


def extent(answer: Sequence[bytes | None]) -> tuple[int, int, LeaderEpochs | None]:
    """Where a log starts and ends.

    Args:
        answer: of the script `extent`.

    Returns:
        Log start, next offset, leader epochs; a partition that no server has opened yet is empty and has none.
    """
    start, snapshot, rows, last_id = answer[:4]
    if start is None or rows is None:
        return 0, 0, None
    found = epochs(rows)
    last = int(last_id.partition(b"-")[2]) if last_id else 0
    return int(start), max(last, int(start), int(snapshot or 0), found.rows[-1].first), found


def high_watermark(answer: Sequence[bytes | None]) -> int:
    """A log's high watermark as it was written down last, by an answer of `extent`; 0 where none was."""
    return int(answer[4] or 0)


def encode_producer(known: ProducerStateEntry) -> bytes:
    """Its epoch, its last use, then first and last sequence and base offset of up to five batches, newest first."""
    numbers = [known.epoch, known.last_use_ms, *(number for batch in known.batches for number in batch)]
    return b" ".join(b"%d" % number for number in numbers)


def decode_producer(value: bytes) -> ProducerStateEntry:
    """Raises ValueError for something else."""
    epoch, last_use_ms, *rest = map(int, value.split())
    batches = tuple(SentBatch(*rest[place : place + 3]) for place in range(0, len(rest), 3))
    return ProducerStateEntry(epoch, batches, last_use_ms)
