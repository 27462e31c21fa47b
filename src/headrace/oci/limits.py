"""Rate limits of the service (`oci.limits=strict`). Pure: token buckets of `security.quotas.rates`.

The server applies these limits with `oci.limits=strict`:

- 1 MB/s written to a partition. Entries above it have `"error": "429"`. If all partitions reject, the response is 429.
- 5 GetMessages per second of a group's instance, and of all partition cursors of a partition together: 429.
- 5 per second and tenancy of each of CreateCursor, CreateGroupCursor, GetGroup, UpdateGroup, ConsumerCommit and
  ConsumerHeartbeat: 429.
- 5 per second and tenancy of each kind of change or read of streams, of stream pools and of connect harnesses: 429.

A bucket holds one second's worth and refills evenly. The last request may overdraw it, because a partition's messages
are stored atomically. A rejected request gets the delay in milliseconds, and in seconds in `retry-after`. The service
documents these rates ("Limits on Streaming Resources") but not how it counts.
"""

from collections.abc import Hashable

from headrace.oci.errors import OciError
from headrace.security.quotas.rates import TokenBucket

WRITTEN_BYTES = 1_000_000
"""Bytes per second and partition."""
READS = 5
"""GetMessages per second, partition and group. All partition cursors of a partition share one limit."""
CALLS = 5
"""Requests per second of each kind (`kind_of`) and tenancy."""

BYTES_TEXT = "Request was throttled because bytes limit exhausted, next request can be made in {ms} ms"
REQUESTS_TEXT = "Request was throttled because requests limit exhausted, next request can be made in {ms} ms"

_CRUD = {"Create": "create", "Get": "read", "List": "read", "Update": "update", "Change": "update", "Delete": "delete"}
_MOST_BUCKETS = 10_000


def kind_of(operation: str) -> str | None:
    """Return the kind that shares a limit, or None: unlimited, or counted otherwise."""
    if operation in {
        "CreateCursor", "CreateGroupCursor", "GetGroup", "UpdateGroup", "ConsumerCommit", "ConsumerHeartbeat",
    }:  # fmt: skip
        return operation
    for resource in ("StreamPool", "ConnectHarness", "Stream"):
        if resource in operation:
            return next((f"{kind} {resource}" for verb, kind in _CRUD.items() if operation.startswith(verb)), None)
    return None


class Limits:
    """All buckets of the API."""

    def __init__(self) -> None:
        self._buckets: dict[Hashable, TokenBucket] = {}

    def write(self, stream: bytes, partition: int, size: int, ticks_ms: int) -> int:
        """Count a write of `size` bytes. Return 0 or the delay in ms."""
        return self._take(("write", stream, partition), WRITTEN_BYTES, size, ticks_ms)

    def read(self, stream: bytes, reader: Hashable, ticks_ms: int) -> None:
        """Count a read. Raises OciError 429."""
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
                self._buckets = {each: kept for each, kept in self._buckets.items() if not kept.is_idle(ticks_ms)}
            bucket = self._buckets[key] = TokenBucket(rate, rate, ticks_ms)
        wait_ms = bucket.empty_ms(ticks_ms)
        if not wait_ms:
            bucket.take(tokens, ticks_ms)
        return wait_ms


def _check(wait_ms: int) -> None:
    if wait_ms:
        raise throttled(REQUESTS_TEXT.format(ms=wait_ms), wait_ms)


def throttled(message: str, wait_ms: int) -> OciError:
    """Return 429 with `retry-after` in whole seconds."""
    return OciError(429, message, headers={"retry-after": str(-(-wait_ms // 1000))})
