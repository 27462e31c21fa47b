"""Counters. Attributes only grow, except those documented as "now"."""

from collections.abc import Iterable, Mapping

import msgspec

TICKS = 1_000_000
"""Ticks per second, the unit of durations."""

_SLOTS = 64


class Durations:
    """Histogram by powers of two: slot n counts durations below 2**n ticks and at least half of that.

    Hot paths inline `add`.
    """

    __slots__ = ("slots", "ticks")

    def __init__(self) -> None:
        self.slots = [0] * _SLOTS
        self.ticks = 0

    def add(self, ticks: int) -> None:
        """Count one duration."""
        self.ticks += ticks
        self.slots[ticks.bit_length()] += 1

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.slots)


class ApiCounters(Durations):
    """Requests of one API or OCI operation on one listener, by duration, and their errors.

    A duration runs from receiving the request to writing the response to the socket, without the time that a Fetch
    waits for records. It includes the wait of a JoinGroup for other members.
    """

    __slots__ = ("errors", "expected", "name")

    def __init__(self, name: str, expected: frozenset[int | str] = frozenset()) -> None:
        super().__init__()
        self.name = name
        self.expected = expected
        """Errors that belong to the normal flow of the protocol. They are counted, but are no failures."""
        self.errors: dict[int | str, int] = {}
        """Error -> responses that contain it."""

    def failed(self, errors: Iterable[int | str]) -> None:
        """Count a response with these distinct errors."""
        for error in errors:
            self.errors[error] = self.errors.get(error, 0) + 1

    @property
    def failures(self) -> int:
        """Number of errors, without the expected ones."""
        return sum(count for error, count in self.errors.items() if error not in self.expected)


Expected = Mapping[int | str, frozenset[int | str]]
"""Key of an API -> its expected errors."""


class ListenerCounters:
    """Counters of one listener."""

    __slots__ = ("apis", "name")

    def __init__(self, name: str, apis: Mapping[int | str, str], expected: Expected) -> None:
        """Start at zero. `apis`: key of an API -> its name."""
        self.name = name
        self.apis: dict[int | str, ApiCounters] = {
            key: ApiCounters(api, expected.get(key, frozenset())) for key, api in apis.items()
        }


class TopicCounters:
    """Records and bytes of one topic, through all listeners, since the server opened it."""

    __slots__ = ("bytes_in", "bytes_out", "records_in", "records_out")

    def __init__(self) -> None:
        self.records_in = 0
        """Records that were stored and acknowledged."""
        self.bytes_in = 0
        """Bytes of their record batches, compressed if they are."""
        self.records_out = 0
        """Records returned. Kafka clients get whole batches, so records before the fetch offset count."""
        self.bytes_out = 0
        """Bytes returned: of record batches to Kafka clients, of keys and values to OCI clients."""


class StoreCounters:
    """Counters of the storage, which sets them."""

    __slots__ = (
        "append_bytes", "append_durations", "appends", "asked_bytes", "file_bytes", "journal_bytes", "journal_waiting",
        "openings", "reconnects", "refusal", "refused",
    )  # fmt: skip

    def __init__(self) -> None:
        self.appends = 0
        """Record batches that Redis has stored."""
        self.append_bytes = 0
        """Their bytes."""
        self.append_durations = Durations()
        """Time from sending to the response of Redis, per call, which may have several batches."""
        self.asked_bytes = 0
        """Bytes of batches requested from Redis."""
        self.file_bytes = 0
        """Bytes of batches read from the embedded Valkey's append-only file instead."""
        self.refused = 0
        """Batches that Redis refused, or whose outcome was unknown when the connection was lost."""
        self.refusal = ""
        """Now: why Redis, whose memory is full, refused the last batch; empty if it took it."""
        self.reconnects = 0
        """Reconnections to Redis."""
        self.openings = 0
        """Recovered partitions."""
        self.journal_bytes = 0
        """Now: bytes of the journal's file."""
        self.journal_waiting = 0
        """Now: bytes acknowledged from the journal that Redis is not yet known to have."""


class DeadLetterCounters:
    """Dead letters of share groups in a virtual cluster."""

    __slots__ = ("copied", "failures")

    def __init__(self) -> None:
        self.copied = 0
        """Records that dead letter topics got."""
        self.failures = 0
        """Failed attempts to copy some."""


class ShareCounters:
    """Records of share groups in the partitions that this server leads."""

    __slots__ = ("acquired", "expired", "given_up", "redelivered")

    def __init__(self) -> None:
        self.acquired = 0
        """Records that members acquired, each time."""
        self.redelivered = 0
        """Of these, records that were delivered before."""
        self.expired = 0
        """Records whose lock ended before an acknowledgement."""
        self.given_up = 0
        """Records that reached the delivery limit."""


class Counters:
    """Counters of a server, except those of topics."""

    __slots__ = ("listeners", "loop_delays", "store")

    def __init__(self) -> None:
        self.listeners: list[ListenerCounters] = []
        self.store = StoreCounters()
        self.loop_delays = Durations()
        """Delay of the event loop at a timer."""

    def listener(self, name: str, apis: Mapping[int | str, str], expected: Expected | None = None) -> ListenerCounters:
        """Add and return the counters of a listener."""
        made = ListenerCounters(name, apis, expected or {})
        self.listeners.append(made)
        return made


class ConnectedClient(msgspec.Struct, frozen=True, order=True):
    """What a Kafka client reports about itself, which is not verified, and its address."""

    client_id: str
    software: str
    """Name and version of the client library (KIP-511); empty: not reported."""
    host: str


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """State of Redis."""

    memory_bytes: int
    memory_max_bytes: int
    replicas: int
    append_file_bytes: int
    append_file_ok: bool


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """State of the server's process and disk. None: not available here."""

    cpu_seconds: float
    started_seconds: float | None = None
    resident_bytes: int | None = None
    open_fds: int | None = None
    max_fds: int | None = None
    disk_free_bytes: int | None = None
    disk_size_bytes: int | None = None
