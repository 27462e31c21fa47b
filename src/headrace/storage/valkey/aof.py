"""Read batches from the local Valkey's append-only file, which is in the page cache.

This takes one copy per batch instead of three, and no time of Valkey. In all unexpected cases the caller uses XRANGE,
so the result is always the same:

- Valkey writes a command to the file before any client sees it. A read first scans the file to its end, unless that
  takes long.
- Valkey changes its manifest before it writes to another file. A read checks it first.
- After commands that a log's leader does not use, the log is unknown (`_aof_scan.c`).
- A read does not wait for data outside the page cache.

The scan takes 1 µs per batch, mostly in idle periods. It does not detect CONFIG SET appendonly no, nor a key with
EXPIRE before Valkey has removed it.
"""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Final, Self

from headrace.aio.tasks import end
from headrace.storage.layout.entries import EntryId
from headrace.storage.valkey.datadir import MANIFEST
from headrace.topics.model import StoredBatch

try:
    import headrace.storage.valkey._aof as _compiled  # mypy finds the stub only in this form
except ImportError:  # no compiler at the installation
    _compiled = None  # type: ignore[assignment]

MOST_PLACES: Final = 1 << 20
"""Maximum number of known batches, at 24 bytes each. The oldest are forgotten first."""
SLICE_WORK: Final = 10_000
"""Command arguments that are scanned in one turn of the event loop: about 1 ms."""
PIECE_BYTES: Final = 4 << 20
"""Bytes that are copied in one turn of the event loop."""
REST_S: Final = 0.05
"""Seconds without writes before the file is scanned in advance."""
LOOK_S: Final = 5.0
"""Maximum seconds that an obsolete file stays open, which keeps its bytes on the disk."""
_WANTED_BYTES: Final = 1 << 20
"""Bytes to read ahead if the file has left the page cache."""
_MANIFEST_BYTES: Final = 64 << 10
_NOTHING: Final = -1


class AppendOnlyFile:
    """The file that a Valkey currently writes."""

    def __init__(self, records: Path, work: int = SLICE_WORK) -> None:
        """Use `open`."""
        assert _compiled is not None
        self._records = records
        self._manifest = records / MANIFEST
        self._seen: _Seen | None = None
        """Manifest that named the open file, or None."""
        self._fd = _NOTHING
        self._index = _compiled.Index(MOST_PLACES)
        self._work = work
        self._scanning: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._grew = False
        """Whether something was written since the timer was set."""
        self._copied = 0
        """Bytes in this turn of the event loop."""
        self._closed = False

    @classmethod
    def open(cls, records: Path, work: int = SLICE_WORK) -> Self | None:
        """Return the file, or None if the C extension or non-blocking reads are missing."""
        if _compiled is None:
            return None
        made = cls(records, work)
        can_read = made._follow() and _compiled.can_read(made._fd)
        made._leave()
        return made if can_read else None

    def grows(self) -> None:
        """Announce a write. After the last one, the file is scanned in advance for readers.

        Until then writers need the time, and most reads are served from memory.
        """
        self._grew = True
        if self._rest is None and not self._closed:
            self._rest = asyncio.get_running_loop().call_later(REST_S, self._rested)

    def _rested(self) -> None:
        self._rest = None
        if self._grew:
            self._grew = False
            self._rest = asyncio.get_running_loop().call_later(REST_S, self._rested)
        elif self._follow() and not self._is_scanned():
            self._scanning = asyncio.get_running_loop().create_task(self._go_through(), name="append-only file")

    async def read(
        self, key: bytes, first: EntryId, last: EntryId, count: int, join: int | None = None
    ) -> list[StoredBatch] | None:
        """Return at most `count` batches of a log with ids from `first` to `last`, at least one.

        With `join`, see `LogStorage.read`, more batches may exist. Returns None if XRANGE must be used.
        """
        if not self._is_known():
            return None
        found: list[StoredBatch] = []
        index = self._index
        following: EntryId | None = first
        taken, left = 0, join
        while following is not None:
            while self._copied >= PIECE_BYTES:
                await asyncio.sleep(0)
            if index is not self._index:
                return None
            most = PIECE_BYTES if left is None else min(left, PIECE_BYTES)
            piece = index.read(self._fd, key, following, last, count - taken, most, left is not None)
            if piece is None:
                return None
            batches, following = piece
            size = sum(len(each[2]) for each in batches)
            if not self._copied:
                asyncio.get_running_loop().call_soon(self._turned)
            self._copied += size
            if left is not None:
                left -= size
                if found and left < 0:
                    break
            found += [StoredBatch(*each) for each in batches]
            taken += sum(each[3] for each in batches)
            if most < PIECE_BYTES:
                break
        return found

    def _turned(self) -> None:
        self._copied = 0

    def _is_known(self) -> bool:
        """Also continue the scan in the background."""
        if not self._follow() or self._is_scanned():
            return False
        how = self._scan()
        if how == _compiled.MORE:
            self._scanning = asyncio.get_running_loop().create_task(self._go_on(), name="append-only file")
        return how == _compiled.AT_END

    def _is_scanned(self) -> bool:
        return self._scanning is not None and not self._scanning.done()

    def _scan(self) -> int:
        how = self._index.scan(self._fd, self._work)
        if how == _compiled.ABSENT:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, self._index.position, _WANTED_BYTES, os.POSIX_FADV_WILLNEED)
        return how

    async def _go_on(self) -> None:
        index = self._index
        while index is self._index and self._scan() == _compiled.MORE:
            await asyncio.sleep(0)

    async def _go_through(self) -> None:
        index = self._index
        while index is self._index and not self._grew and index.scan(self._fd, self._work) == _compiled.MORE:
            await asyncio.sleep(0)

    def _look(self) -> None:
        self._timer = None
        if self._follow() and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _follow(self) -> bool:
        if self._seen is not None:
            with contextlib.suppress(OSError):
                # Valkey replaces the manifest by a rename.
                if _seen(self._manifest.stat()) == self._seen:
                    return True
        self._leave()
        if not self._closed:
            with contextlib.suppress(OSError):
                self._open_named()
        return self._fd != _NOTHING

    def _open_named(self) -> None:
        with self._manifest.open("rb") as manifest:
            seen = _seen(os.fstat(manifest.fileno()))
            text = manifest.read(_MANIFEST_BYTES)
        name = _file_of(text) if len(text) < _MANIFEST_BYTES else None
        if name is not None:
            self._fd = os.open(self._records / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            self._seen = seen
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _leave(self) -> None:
        """An open descriptor would keep its bytes on the disk."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd != _NOTHING:
            os.close(self._fd)
            self._fd = _NOTHING
            self._index = _compiled.Index(MOST_PLACES)
        self._seen = None

    async def close(self) -> None:
        """Close the file."""
        self._closed = True
        if self._rest is not None:
            self._rest.cancel()
        self._leave()
        if self._scanning is not None:
            await end(self._scanning)


_Seen = tuple[int, int, int, int]


def _seen(facts: os.stat_result) -> _Seen:
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _file_of(manifest: bytes) -> str | None:
    # `file appendonly.aof.2.incr.aof seq 2 type i`
    for line in reversed(manifest.decode("utf-8", "replace").splitlines()):
        words = line.split(" ")
        facts = dict(zip(words[::2], words[1::2], strict=False))
        if facts.get("type") == "i":
            name = facts.get("file", "")
            return name if name and "/" not in name and '"' not in name else None
    return None
