"""A log that this server leads, as the storage sees it: its calls in flight and their order."""

from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter_ns

import msgspec

from headrace.storage.journal.acks import Entered
from headrace.storage.layout.keys import aborted_of, producers_of, state_of, transactions_of
from headrace.storage.redis.connection import Connection
from headrace.storage.redis.protocol import Reply
from headrace.topics.errors import StorageUnavailable
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import Append, Lost, PlaceDone
from headrace.topics.segments import CleanedLog


def ignore_loss(_: Exception) -> None:
    """Ignore the loss of a log that is no longer needed."""


class Batch(msgspec.Struct, eq=False):
    """A batch in flight, with its offset."""

    append: Append
    base_offset: int
    done: PlaceDone | None
    """None for an acknowledged batch."""
    entered: Entered | None = None
    """Entry in the journal, if it has one."""


class ScriptCall:
    """A script call between the batches of a log."""

    __slots__ = ("answered", "batches", "command")

    def __init__(self, command: bytes, answered: Callable[[Reply], None]) -> None:
        self.command = command
        self.answered = answered
        self.batches: Sequence[Batch] = ()


class BatchCall:
    """Batches in one call."""

    __slots__ = ("batches", "proof", "sent_ns", "size")

    def __init__(self, batches: list[Batch], size: int, proof: int) -> None:
        self.batches: Sequence[Batch] = batches
        self.size = size
        self.proof = proof
        """Proof for the journal if the call succeeds: see `JournaledAcks.proven`."""
        self.sent_ns = perf_counter_ns()


class LeaderLog:
    """A log that this server leads."""

    __slots__ = (
        "acknowledged",
        "cleaned",
        "connection",
        "entries",
        "epochs",
        "fenced_reason",
        "id",
        "key",
        "name",
        "newest",
        "on_lost",
        "size",
        "term",
        "unacknowledged",
        "under_way",
        "urgent",
        "waiting",
        "waiting_bytes",
        "writing",
        "xadd",
        "xlen",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = name.encode()
        stream = b"$%d\r\n%b\r\n" % (len(self.key), self.key)
        self.xadd = b"*10\r\n$4\r\nXADD\r\n" + stream + b"$10\r\nNOMKSTREAM\r\n"
        self.xlen = b"*2\r\n$4\r\nXLEN\r\n" + stream
        self.fenced_reason: Exception | None = StorageUnavailable(f"{name} has not been opened yet")
        """Reason why batches are rejected. None while the leadership is certain."""
        self.connection: Connection
        """To the primary of the recovery. Nothing is sent while the leadership is in doubt."""
        self.on_lost: Lost = ignore_loss
        self.term = 0
        self.id = b""
        """Distinguishes logs under the same key."""
        self.epochs: LeaderEpochs | None = None
        self.entries = 0
        """Expected number of entries in the stream."""
        self.cleaned = CleanedLog()
        """Its cleaned segments."""
        self.writing: int | None = None
        """Number of a segment that is not visible yet."""
        self.newest, self.size = -1, 0
        """`t` and `s` of the last entry that was placed."""
        self.waiting: deque[Batch | ScriptCall] = deque()
        self.waiting_bytes = 0
        self.urgent = False
        """Whether a client waits for one of those."""
        self.under_way: BatchCall | ScriptCall | None = None
        self.unacknowledged = 0
        """Batches in flight that are not acknowledged. Later batches must wait for them."""
        self.acknowledged: deque[Batch] = deque()
        """Acknowledged batches that Redis does not have yet, in order."""

    @property
    def state(self) -> str:
        """Return the key of the state hash."""
        return state_of(self.name)

    @property
    def producers(self) -> str:
        """Return the key of the producers' hash."""
        return producers_of(self.name)

    @property
    def transactions(self) -> list[str]:
        """Return the keys of the transactions."""
        return [transactions_of(self.name), aborted_of(self.name)]
