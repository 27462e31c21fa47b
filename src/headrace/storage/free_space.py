"""Whether there is room for what is acknowledged before Redis has safely written it: on the disk, and in memory."""

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
"""Free disk below which nothing is taken: there must be room for all that is under way."""
_NEARLY_FULL = "less than 64 MiB are free on the disk of the data directory: free some of it"
_UNSEEN = "the data directory cannot be looked at ({}): put it back where it was, or start the server again"
_LOW_BYTES = 1 << 30
"""Free disk below which an answer of Valkey is not believed without a second one."""
_LOOK_BYTES = 4 << 20
"""How much is acknowledged between two looks."""
_INFO = encode(["INFO", "memory"])
_INFO_FIGURE = re.compile(rb"^(used_memory|maxmemory):(\d+)", re.MULTILINE)


def free_bytes(path: Path) -> int:
    """Bytes that a user without privileges may still write there."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class SameDirectory:
    """The free bytes of a directory, as long as it is the one that was there at the first look.

    Where another is in its place, as behind a volume that was unmounted, a start would find nothing of what is taken.
    """

    def __init__(self) -> None:
        """Know none yet."""
        self._first: os.stat_result | None = None

    def __call__(self, path: Path) -> int:
        """As `free_bytes`. Raises OSError: it is gone, or is another one."""
        found = path.stat()
        if self._first is None:
            self._first = found
        elif not os.path.samestat(found, self._first):
            raise OSError(errno.ESTALE, "another directory is in its place")
        return free_bytes(path)


class FreeSpace:
    """Room on the disk of a data directory.

    Valkey answers a write before it knows whether its append-only file took it, and a kill -9 then loses what the file
    has not. So the server refuses while there is still room for everything that is under way.
    """

    def __init__(self, path: Path, free: Callable[[Path], int] | None = None) -> None:
        self._path = path
        if free is None:
            free = SameDirectory()
            with contextlib.suppress(OSError):
                free(path)  # known from now on: the first batch may come much later
        self._free = free
        self._left = 0
        self._why = ""
        self.gone = False
        """Whether it was not where it was when somebody looked last: what Redis has answered is nobody's."""

    def check(self, size: int) -> None:
        """Count a batch of so many bytes that is to be taken. Raises StorageFull where it may not be."""
        if not self.has_room(size):
            raise self.refusal()

    def has_room(self, size: int) -> bool:
        """Whether a batch of so many bytes may be taken."""
        self._left -= size
        if self._left <= 0:
            self._left = min(_LOOK_BYTES, self._look() - RESERVE_BYTES - size)
        return self._left >= 0

    def refusal(self) -> StorageFull:
        """Why there was no room when somebody looked last."""
        return StorageFull(self._why)

    def _look(self) -> int:
        """Bytes that are free; none where the directory is not where it was: what Redis writes is nobody's by now."""
        try:
            free = self._free(self._path)
        except OSError as error:
            self.gone, self._why = True, _UNSEEN.format(error.strerror)
            return 0
        self.gone, self._why = False, _NEARLY_FULL
        return free

    def low(self) -> bool:
        """Whether the disk is so nearly full that Valkey's answers need a proof, or is `gone`; looks now."""
        free = self._look()
        if free < RESERVE_BYTES + _LOOK_BYTES:
            self._left = 0
        return free < _LOW_BYTES


class FreeMemory:
    """Room in the memory of Redis, as it was at the last look."""

    def __init__(self, connection: Connection, reserve: int) -> None:
        """Know nothing yet: there is no room before the first look.

        Args:
            connection: to the Redis.
            reserve: bytes that may be under way to it beside what is counted here.
        """
        self._connection = connection
        self._reserve = reserve
        self._allowed = 0
        self._looking = False

    def take(self, size: int) -> bool:
        """Whether a batch of so many bytes finds room; it is counted then."""
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
