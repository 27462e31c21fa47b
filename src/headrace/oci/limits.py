"""Rate limits as the service has them (`oci.limits=strict`). Pure: token buckets on the times that they are given.

With `oci.limits=strict` these hold; otherwise nobody is slowed down:

- 1 MB/s written to a partition: messages beyond have `"error": "429"` in their entry of a PutMessages that is 200; when
  no partition takes any the answer is 429;
- 5 GetMessages/s of a group's instance, and of all single readers of a partition together: 429;
- 5/s of CreateCursor, CreateGroupCursor, GetGroup, UpdateGroup, ConsumerCommit and ConsumerHeartbeat each, of creating,
  reading, updating and deleting streams each, and so for stream pools and connect harnesses, per tenancy: 429.

A bucket holds one second's worth, fills up again evenly, and may be overdrawn by the last one who takes from it, since
a partition's messages are stored together or not at all. Who finds it empty is told for how many milliseconds it stays
so, and in `retry-after` for how many seconds. The service documents these rates ("Limits on Streaming Resources") but
not how they are counted.
"""

from collections.abc import Hashable

from headrace.oci.errors import OciError

WRITTEN_BYTES = 1_000_000
"""Per second and partition."""
READS = 5
"""GetMessages per second, partition and group; single readers of a partition are one group here."""
CALLS = 5
"""Requests per second of each kind in `KINDS`, for a tenancy."""

BYTES_TEXT = "Request was throttled because bytes limit exhausted, next request can be made in {ms} ms"
REQUESTS_TEXT = "Request was throttled because requests limit exhausted, next request can be made in {ms} ms"

_CRUD = {"Create": "create", "Get": "read", "List": "read", "Update": "update", "Change": "update", "Delete": "delete"}
_MOST_BUCKETS = 10_000


def kind_of(operation: str) -> str | None:
    """Which requests share a limit with this operation; None: it has none, or one of its own."""
    if operation in {
        "CreateCursor", "CreateGroupCursor", "GetGroup", "UpdateGroup", "ConsumerCommit", "ConsumerHeartbeat",
    }:  # fmt: skip
        return operation
    for resource in ("StreamPool", "ConnectHarness", "Stream"):
        if resource in operation:
            return next((f"{kind} {resource}" for verb, kind in _CRUD.items() if operation.startswith(verb)), None)
    return None


class Bucket:
    """Tokens, counted in thousandths so that whole numbers do: a rate per second is one in thousandths per ms."""

    __slots__ = ("_left", "_rate", "_seen_ms")

    def __init__(self, rate: int, ticks_ms: int) -> None:
        """Full: one second's worth.

        Args:
            rate: tokens per second.
            ticks_ms: milliseconds, from anywhere, never going back.
        """
        self._rate = rate
        self._left = rate * 1000
        self._seen_ms = ticks_ms

    def take(self, tokens: int, ticks_ms: int) -> int:
        """Take tokens; 0, or after how many ms there will be some again when there are none, and nothing is taken."""
        self._fill(ticks_ms)
        if self._left <= 0:
            return -self._left // self._rate + 1
        self._left -= tokens * 1000
        return 0

    def is_full(self, ticks_ms: int) -> bool:
        """Whether it might as well be forgotten."""
        self._fill(ticks_ms)
        return self._left == self._rate * 1000

    def _fill(self, ticks_ms: int) -> None:
        passed = max(0, ticks_ms - self._seen_ms)
        self._seen_ms = max(self._seen_ms, ticks_ms)
        self._left = min(self._rate * 1000, self._left + passed * self._rate)


class Limits:
    """Every bucket of the API."""

    def __init__(self) -> None:
        self._buckets: dict[Hashable, Bucket] = {}

    def write(self, stream: bytes, partition: int, size: int, ticks_ms: int) -> int:
        """Whether `size` bytes may be written to a partition: 0, or the ms to wait."""
        return self._take(("write", stream, partition), WRITTEN_BYTES, size, ticks_ms)

    def read(self, stream: bytes, reader: Hashable, ticks_ms: int) -> None:
        """Count a read of a reader: a partition, or a group's instance. Raises OciError 429."""
        _check(self._take(("read", stream, reader), READS, 1, ticks_ms))

    def call(self, operation: str, tenancy: str, ticks_ms: int) -> None:
        """Count a request. Raises OciError 429."""
        kind = kind_of(operation)
        if kind is not None:
            _check(self._take(("call", kind, tenancy), CALLS, 1, ticks_ms))

    def _take(self, key: Hashable, rate: int, tokens: int, ticks_ms: int) -> int:
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _MOST_BUCKETS:
                self._buckets = {each: kept for each, kept in self._buckets.items() if not kept.is_full(ticks_ms)}
            bucket = self._buckets[key] = Bucket(rate, ticks_ms)
        return bucket.take(tokens, ticks_ms)


def _check(wait_ms: int) -> None:
    if wait_ms:
        raise throttled(REQUESTS_TEXT.format(ms=wait_ms), wait_ms)


def throttled(message: str, wait_ms: int) -> OciError:
    """429 with `retry-after` in whole seconds."""
    return OciError(429, message, headers={"retry-after": str(-(-wait_ms // 1000))})
