"""A log that this server has opened, as the store sees it: what is on its way to Redis, and in which order."""

from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter_ns

import msgspec

from headrace.storage.journal.acks import Entered
from headrace.storage.layout.keys import producers_of, state_of
from headrace.storage.redis.connection import Connection
from headrace.storage.redis.protocol import Reply
from headrace.topics.errors import StorageUnavailable
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import Append, Lost, PlaceDone


def ignore_loss(_: Exception) -> None:
    """Of a log that nobody waits for any more."""


class Batch(msgspec.Struct, eq=False):
    """A batch with its place, on its way."""

    append: Append
    base_offset: int
    done: PlaceDone | None
    """None for a batch that is acknowledged already."""
    entered: Entered | None = None
    """Its entry in the journal, if it has one."""


class ScriptCall:
    """A call of a script that has its turn among the batches of a log."""

    __slots__ = ("answered", "batches", "command")

    def __init__(self, command: bytes, answered: Callable[[Reply], None]) -> None:
        self.command = command
        self.answered = answered
        self.batches: Sequence[Batch] = ()


class BatchCall:
    """Batches that were sent together."""

    __slots__ = ("batches", "proof", "sent_ns", "size")

    def __init__(self, batches: list[Batch], size: int, proof: int) -> None:
        self.batches: Sequence[Batch] = batches
        self.size = size
        self.proof = proof
        """What an answer proves of the journal: see `EarlyAcknowledgement.proven`."""
        self.sent_ns = perf_counter_ns()


class LeaderLog:
    """A log that this server has opened, as the store sees it."""

    __slots__ = (
        "acknowledged",
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
        """Why nothing can be placed just now; None while all is well."""
        self.connection: Connection
        """To the server that it was opened in; nothing is sent while there is a doubt."""
        self.on_lost: Lost = ignore_loss
        self.term = 0
        self.id = b""
        """Tells this log from an earlier one under the same key."""
        self.epochs: LeaderEpochs | None = None
        self.entries = 0
        """How many the stream must have."""
        self.newest, self.size = -1, 0
        """As `t` and `s` of the last entry that was placed."""
        self.waiting: deque[Batch | ScriptCall] = deque()
        self.waiting_bytes = 0
        self.urgent = False
        """Whether somebody waits for one of those."""
        self.under_way: BatchCall | ScriptCall | None = None
        self.unacknowledged = 0
        """Batches on their way that are not acknowledged yet: what comes behind them cannot be, either."""
        self.acknowledged: deque[Batch] = deque()
        """Batches that are acknowledged and not in Redis yet, in order."""

    @property
    def state(self) -> str:
        """Key of the state hash."""
        return state_of(self.name)

    @property
    def producers(self) -> str:
        """Key of the producers' hash."""
        return producers_of(self.name)
