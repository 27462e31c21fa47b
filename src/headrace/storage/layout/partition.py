"""State of a log next to its stream: the state hash, and the hash of its producers."""

from collections.abc import Sequence

from headrace.topics.leader_epochs import EpochRow, LeaderEpochs
from headrace.topics.producer_state import NEVER_ENDED, ProducerStateEntry, SentBatch
from headrace.topics.transactions import AbortedTransaction, EndedTransaction, OpenTransaction, Unstable


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
    """Encode epoch, last use, then first and last sequence and base offset of up to five batches, newest first.

    The number of the last ended transaction follows, if there is one.
    """
    numbers = [known.epoch, known.last_use_ms, *(number for batch in known.batches for number in batch)]
    if known.ended >= 0:
        numbers.append(known.ended)
    return b" ".join(b"%d" % number for number in numbers)


def decode_producer(value: bytes) -> ProducerStateEntry:
    """Raises ValueError."""
    epoch, last_use_ms, *rest = map(int, value.split())
    ended = rest.pop() if len(rest) % 3 == 1 else NEVER_ENDED
    batches = tuple(SentBatch(*rest[place : place + 3]) for place in range(0, len(rest), 3))
    known = ProducerStateEntry(epoch, batches, last_use_ms, ended)
    if not batches:
        # A marker raised its epoch, whose sequences begin at 0.
        known.expected = 0
    return known


OPEN = b"o:"
"""Prefix of a transaction's field, before its first offset."""
NAME = b" i"
"""Before the transactional ID, which may have any characters."""
ABORTED_COUNT = b"aborted"
"""Field with the number of aborted transactions in the sorted set."""


def encode_unstable(found: Unstable) -> bytes:
    """Encode producer id, epoch, start in ms and number; with a marker also its offset, 1 to commit, and stable end.

    Then `i` and the transactional ID, if it is known.
    """
    transaction = found if isinstance(found, OpenTransaction) else found.transaction
    numbers = [transaction.producer_id, transaction.epoch, transaction.since_ms, transaction.number]
    if isinstance(found, EndedTransaction):
        numbers += [found.marker_offset, int(found.commit), found.stable_end]
    name = transaction.transactional_id.encode("utf-8", "surrogatepass")
    return b" ".join(b"%d" % number for number in numbers) + (NAME + name if name else b"")


def decode_unstable(field: bytes, value: bytes) -> Unstable:
    """Raises ValueError."""
    numbers, _, name = value.partition(NAME)
    producer_id, epoch, since_ms, number, *marker = map(int, numbers.split())
    transactional_id = name.decode("utf-8", "surrogatepass")
    transaction = OpenTransaction(producer_id, int(field.removeprefix(OPEN)), epoch, since_ms, number, transactional_id)
    if not marker:
        return transaction
    offset, commit, stable_end = marker
    return EndedTransaction(transaction, offset, bool(commit), stable_end)


def encode_aborted(aborted: AbortedTransaction) -> bytes:
    """Encode producer id, first offset and stable end. The marker's offset is the score."""
    return b"%d %d %d" % (aborted.producer_id, aborted.first_offset, aborted.stable_end)


def decode_aborted(member: bytes, score: bytes) -> AbortedTransaction:
    """Raises ValueError."""
    producer_id, first_offset, stable_end = map(int, member.split())
    return AbortedTransaction(producer_id, first_offset, int(float(score)), stable_end)
