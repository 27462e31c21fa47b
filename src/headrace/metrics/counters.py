"""The counters. Every attribute only grows, but for those that say "now"."""

from collections.abc import Iterable, Mapping

import msgspec

TICKS = 1_000_000
"""Ticks of a second, the unit of durations."""

_SLOTS = 64


class Durations:
    """How long something took, by powers of two: slot n counts what took less than 2**n ticks, and at least half of it.

    Where every nanosecond counts, do what `add` does in place of calling it.
    """

    __slots__ = ("slots", "ticks")

    def __init__(self) -> None:
        self.slots = [0] * _SLOTS
        self.ticks = 0

    def add(self, ticks: int) -> None:
        """Count one; `ticks` is not negative."""
        self.ticks += ticks
        self.slots[ticks.bit_length()] += 1

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.slots)


class ApiCounters(Durations):
    """The answered requests of one API (or OCI operation) on one listener, by duration, and how many failed.

    The duration is from when the server takes the request up until its answer is handed to the socket: for a Fetch that
    waits for records, and a JoinGroup that waits for the others, that is in it.
    """

    __slots__ = ("errors", "name")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.errors: dict[int | str, int] = {}
        """Error -> answers in which it stands at least once."""

    def failed(self, errors: Iterable[int | str]) -> None:
        """Count an answer with these errors, each of which stands there once."""
        for error in errors:
            self.errors[error] = self.errors.get(error, 0) + 1


class ListenerCounters:
    """What goes on at one listener."""

    __slots__ = ("apis", "name")

    def __init__(self, name: str, apis: Mapping[int | str, str]) -> None:
        """Start at zero.

        Args:
            name: the listener's.
            apis: the key by which an API's counters are found -> its name.
        """
        self.name = name
        self.apis: dict[int | str, ApiCounters] = {key: ApiCounters(api) for key, api in apis.items()}


class TopicCounters:
    """What goes in and out of one topic, through every listener, since the server opened it."""

    __slots__ = ("bytes_in", "bytes_out", "records_in", "records_out")

    def __init__(self) -> None:
        self.records_in = 0
        """Records that were taken and handed to the storage."""
        self.bytes_in = 0
        """Bytes of their record batches, as they lie in the log: compressed, if they are."""
        self.records_out = 0
        """Records handed out. Kafka's clients get whole batches: the records before the offset they asked for count."""
        self.bytes_out = 0
        """Bytes handed out: of record batches to Kafka's clients, of keys and values to OCI's."""


class StoreCounters:
    """What the storage does. The store increases these, or sets those that say "now"; the page reads them."""

    __slots__ = (
        "append_bytes", "append_durations", "appends", "asked_bytes", "file_bytes", "journal_bytes", "journal_waiting",
        "openings", "reconnects", "refused",
    )  # fmt: skip

    def __init__(self) -> None:
        self.appends = 0
        """Record batches that Redis has taken."""
        self.append_bytes = 0
        """Bytes of these."""
        self.append_durations = Durations()
        """From when a batch is sent to Redis until its answer is there; by call, where several batches go in one."""
        self.asked_bytes = 0
        """Bytes of batches that Redis was asked for."""
        self.file_bytes = 0
        """Bytes of batches that were read from the embedded Valkey's append-only file instead."""
        self.refused = 0
        """Batches that Redis refused, or whose fate was unknown when its connection was lost."""
        self.reconnects = 0
        """Connections to Redis made again after one was lost."""
        self.openings = 0
        """Partitions opened, by a start or again after a doubt."""
        self.journal_bytes = 0
        """Now: bytes of the journal's file; 0 without one."""
        self.journal_waiting = 0
        """Now: bytes acknowledged from the journal that Redis is not yet known to have."""


class Counters:
    """Everything that one server counts, but for the topics', which are theirs."""

    __slots__ = ("listeners", "loop_delays", "store")

    def __init__(self) -> None:
        self.listeners: list[ListenerCounters] = []
        self.store = StoreCounters()
        self.loop_delays = Durations()
        """How late the event loop came to a timer."""

    def listener(self, name: str, apis: Mapping[int | str, str]) -> ListenerCounters:
        """The counters of a listener that is opened now; arguments as `ListenerCounters`."""
        made = ListenerCounters(name, apis)
        self.listeners.append(made)
        return made


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How Redis is."""

    memory_bytes: int
    memory_max_bytes: int
    replicas: int
    append_file_bytes: int
    append_file_ok: bool


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How the server's process and its disk are; None: that cannot be told here."""

    cpu_seconds: float
    started_seconds: float | None = None
    resident_bytes: int | None = None
    open_fds: int | None = None
    max_fds: int | None = None
    disk_free_bytes: int | None = None
    disk_size_bytes: int | None = None
