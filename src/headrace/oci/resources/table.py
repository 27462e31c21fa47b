"""Resources of one kind by id.

OCI keeps deleted resources for 90 days. A client can delete faster than that, so each kind forgets its oldest deleted
resources first.
"""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from headrace.broker.documents import readable
from headrace.broker.ports import DocumentStorage
from headrace.metrics.unreadable_values import Unreadable
from headrace.oci.errors import OciError
from headrace.oci.resources.records import Record, RetryToken, WorkRequestRecord, is_deleted

V = TypeVar("V", bound=msgspec.Struct)

MOST_REMEMBERED = 10_000
"""Maximum deleted resources of a kind, and maximum work requests."""
MOST_REMEMBERED_BYTES = 16 << 20
"""The same in bytes of JSON."""
MOST_IN_USE = 20_000
"""Maximum resources of a kind."""
MOST_IN_USE_BYTES = 64 << 20
"""The same in bytes of JSON, mostly tags."""
MOST_TOKENS = 10_000
"""Maximum retry tokens of 24 hours. Dropping one early could create its resource twice."""


class Table(Generic[V]):
    """Values by id, as stored."""

    def __init__(self, kind: str, value: type[V]) -> None:
        self.kind = kind
        self.values: dict[str, V] = {}
        self.remembered: dict[str, int] = {}
        """Id -> size of deleted resources or work requests, the oldest first."""
        self.remembered_bytes = 0
        self.used: dict[str, int] = {}
        """The same of all others."""
        self.used_bytes = 0
        self._decoder = msgspec.json.Decoder(value)
        self._unreadable = Unreadable()

    async def load(self, storage: DocumentStorage) -> None:
        """Load all values, yielding regularly."""
        self._unreadable = storage.unreadable
        read = await readable(storage, self.kind, lambda _, text: (self._decoder.decode(text), len(text)))
        self.values, self.remembered, self.used = {}, {}, {}
        self.remembered_bytes = self.used_bytes = 0
        for name, (value, size) in sorted(read.items(), key=lambda each: _since_ms(each[1][0])):
            self.put(name, value, size)

    def get(self, name: str) -> V | None:
        """Return the value or None."""
        return self.values.get(name)

    def hides(self, name: str) -> bool:
        """Return whether an unreadable value of this id may exist."""
        return name not in self.values and self._unreadable.hides(self.kind, name)

    def put(self, name: str, value: V, size: int) -> None:
        """Add or replace a value of `size` bytes."""
        self.drop(name)
        self.values[name] = value
        if is_only_remembered(value):
            self.remembered[name] = size
            self.remembered_bytes += size
        else:
            self.used[name] = size
            self.used_bytes += size

    def drop(self, name: str) -> None:
        """Remove a value if it exists."""
        self.values.pop(name, None)
        self.remembered_bytes -= self.remembered.pop(name, 0)
        self.used_bytes -= self.used.pop(name, 0)

    def beyond(self, count: int, size: int) -> Iterator[str]:
        """Yield the oldest values to forget for `count` more of `size` bytes in total."""
        count += len(self.remembered)
        size += self.remembered_bytes
        for name, its_size in self.remembered.items():
            if count <= MOST_REMEMBERED and size <= MOST_REMEMBERED_BYTES:
                return
            count -= 1
            size -= its_size
            yield name

    def check_room(self, *, grows: bool = True) -> None:
        """Raise OciError if no more resources (`grows`) or tags fit."""
        if grows and len(self.used) >= MOST_IN_USE:
            raise OciError(
                400, f"There are {MOST_IN_USE} of these resources already: delete one first", "LimitExceeded"
            )
        if self.used_bytes >= MOST_IN_USE_BYTES:
            what = f"The tags of these resources have more than {MOST_IN_USE_BYTES >> 20} MiB together"
            raise OciError(400, f"{what}: delete a resource, or take tags away, first", "LimitExceeded")


def is_only_remembered(value: object) -> bool:
    """Return whether a value only serves look-ups."""
    return isinstance(value, WorkRequestRecord) or (isinstance(value, Record) and is_deleted(value))


def check_token_room(tokens: Table[RetryToken], now_ms: int, token: str) -> None:
    """Raise OciError 429 if a retry token does not fit."""
    if token in tokens.values or len(tokens.values) < MOST_TOKENS:
        return
    soonest_ms = min(each.expires_ms for each in tokens.values.values())
    live = sum(now_ms < each.expires_ms for each in tokens.values.values())
    if live >= MOST_TOKENS:
        wait_s = max(1, -(-(soonest_ms - now_ms) // 1000))
        what = f"{MOST_TOKENS} retry tokens have been used within 24 hours: try again later, or without opc-retry-token"
        raise OciError(429, what, headers={"retry-after": str(wait_s)})


def _since_ms(value: Any) -> int:
    if isinstance(value, WorkRequestRecord):
        return value.accepted_ms
    phase = getattr(value, "phase", None)
    return 0 if phase is None else int(phase.until_ms)
