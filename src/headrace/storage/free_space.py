"""Room for data that is acknowledged before Redis has safely written it: on the disk, and in memory."""

import contextlib
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

from headrace.storage.redis.connection import Connection
from headrace.storage.redis.protocol import Reply, encode
from headrace.topics.errors import StorageFull

RESERVE_BYTES = 64 << 20
"""Free bytes below which the server rejects batches, for the data that is in flight."""
_NEARLY_FULL = "less than 64 MiB are free on the disk of the data directory: free some of it"
_UNSEEN = "the data directory cannot be looked at ({}): put it back where it was, or start the server again"
_LOW_BYTES = 1 << 30
"""Free bytes below which a response of Valkey needs a second check."""
_LOOK_BYTES = 4 << 20
"""Bytes that are acknowledged between two checks."""
_INFO = encode(["INFO", "memory"])
_INFO_FIGURE = re.compile(rb"^(used_memory|maxmemory):(\d+)", re.MULTILINE)


def free_bytes(path: Path) -> int:
    """Return the free bytes for a user without privileges."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class SameDirectory:
    """Free bytes of a directory, as long as it is the same one.

    If another one replaces it, for example after an unmount, a restart would not find the data.
    """

    def __init__(self) -> None:
        self._first: os.stat_result | None = None

    def __call__(self, path: Path) -> int:
        """Return the free bytes. Raises OSError if the directory was replaced."""
        found = path.stat()
        if self._first is None:
            self._first = found
        elif not os.path.samestat(found, self._first):
            raise OSError(errno.ESTALE, "another directory is in its place")
        return free_bytes(path)


class FreeSpace:
    """Room on the disk of a data directory.

    Valkey responds before its append-only file has the write, and a kill -9 loses the rest. So batches are rejected
    while the disk still has room for the data in flight.
    """

    def __init__(self, path: Path, free: Callable[[Path], int] | None = None) -> None:
        self._path = path
        if free is None:
            free = SameDirectory()
            with contextlib.suppress(OSError):
                free(path)  # the first batch may come much later
        self._free = free
        self._left = 0
        self._why = ""
        self.gone = False
        """Whether the directory was missing or replaced at the last check. Responses of Redis are void then."""

    def check(self, size: int) -> None:
        """Count a batch. Raises StorageFull if it does not fit."""
        if not self.has_room(size):
            raise self.refusal()

    def has_room(self, size: int) -> bool:
        """Count a batch, and return whether it fits."""
        self._left -= size
        if self._left <= 0:
            self._left = min(_LOOK_BYTES, self._look() - RESERVE_BYTES - size)
        return self._left >= 0

    def refusal(self) -> StorageFull:
        """Return the reason for the lack of room."""
        return StorageFull(self._why)

    def _look(self) -> int:
        try:
            free = self._free(self._path)
        except OSError as error:
            self.gone, self._why = True, _UNSEEN.format(error.strerror)
            return 0
        self.gone, self._why = False, _NEARLY_FULL
        return free

    def why_refused(self) -> str | None:
        """Return why no batch is accepted; None if there is room. Looks now, and batches are refused from now on."""
        if self._look() >= RESERVE_BYTES:
            return None
        self._left = 0
        return self._why

    def low(self) -> bool:
        """Return whether Valkey's responses need a proof, because the disk is nearly full or `gone`."""
        free = self._look()
        if free < RESERVE_BYTES + _LOOK_BYTES:
            self._left = 0
        return free < _LOW_BYTES


class FreeMemory:
    """Room in the memory of Redis at the last check."""

    def __init__(self, connection: Connection, reserve: int) -> None:
        """Start without room: the first batch requests a check."""
        self._connection = connection
        self._reserve = reserve
        self._allowed = 0
        self._looking = False

    def take(self, size: int) -> bool:
        """Count a batch, and return whether it fits."""
        if self._allowed < _LOOK_BYTES and not self._looking:
            self._looking = True
            self._connection.send([_INFO], self._looked)
        if size > self._allowed:
            return False
        self._allowed -= size
        return True

    def _looked(self, reply: Reply) -> None:
        self._looking = False
        self._allowed = 0
        if type(reply) is bytes:
            figures = {name: int(value) for name, value in _INFO_FIGURE.findall(reply)}
            used, most = figures.get(b"used_memory", 0), figures.get(b"maxmemory", 0)
            reserve = min(RESERVE_BYTES, most // 8)
            if not most or used + self._reserve + reserve < most:
                self._allowed = 2 * _LOOK_BYTES
