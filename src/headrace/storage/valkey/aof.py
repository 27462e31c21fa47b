"""Reads batches from the append-only file of the Valkey on this machine: it lies in the page cache anyway.

Asking Valkey costs three copies of each batch and work in two processes; here it is one copy. It is a shorter way, and
never another answer: a batch comes from the file only where XRANGE would give the same at this moment, and everything
unexpected means that Valkey is asked. What makes that true:

- Valkey writes a command into the file before anybody hears of it. A read first follows the file to its end; where that
  takes longer than a moment, Valkey is asked meanwhile.
- Valkey names the file that it writes to in its manifest, and changes that before it writes to another. A read looks
  there first. What was known of an earlier file is forgotten, so a rewrite costs what lies before it.
- Any command that touches a log in another way than its owner does ends what is known of that log (`_aof_scan.c`).
- What has left the page cache is not waited for.

Going through the file takes a microsecond for each batch; mostly that is done once nothing is being written.

It does not know when somebody switches the file off (CONFIG SET appendonly no), nor of a key that is given a time to
end (EXPIRE) before Valkey has removed it.
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
    import headrace.storage.valkey._aof as _compiled  # mypy finds the stub only by this form
except ImportError:  # no compiler when Headrace was installed
    _compiled = None  # type: ignore[assignment]

MOST_PLACES: Final = 1 << 20
"""Batches that are known at most, at 24 bytes each; the oldest are forgotten first."""
SLICE_WORK: Final = 10_000
"""Arguments of commands that are looked at before others have their turn: about a millisecond."""
PIECE_BYTES: Final = 4 << 20
"""What is copied before others have their turn."""
REST_S: Final = 0.05
"""How long nothing is to be written before the file is gone through ahead of its readers."""
LOOK_S: Final = 5.0
"""How long a file that Valkey no longer writes to may be held open: its bytes stay on the disk for as long."""
_WANTED_BYTES: Final = 1 << 20
"""How far the kernel is asked to read on where the file has left the page cache."""
_MANIFEST_BYTES: Final = 64 << 10
_NOTHING: Final = -1


class AppendOnlyFile:
    """The file that a Valkey writes to just now, as far as it is known."""

    def __init__(self, records: Path, work: int = SLICE_WORK) -> None:
        """Use `open`."""
        assert _compiled is not None
        self._records = records
        self._manifest = records / MANIFEST
        self._seen: _Seen | None = None
        """The manifest that named the file when it was opened; None: none is open."""
        self._fd = _NOTHING
        self._index = _compiled.Index(MOST_PLACES)
        self._work = work
        self._scanning: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._grew = False
        """Whether something was written since that timer was set."""
        self._copied = 0
        """Bytes in this turn of the loop."""
        self._closed = False

    @classmethod
    def open(cls, records: Path, work: int = SLICE_WORK) -> Self | None:
        """Find the file.

        Args:
            records: the folder that Valkey keeps it in.
            work: arguments of commands that are looked at in one go.

        Returns:
            None where nothing can be read from it: there is no extension, or the disk lets nobody read without waiting.
        """
        if _compiled is None:
            return None
        made = cls(records, work)
        can_read = made._follow() and _compiled.can_read(made._fd)
        made._leave()
        return made if can_read else None

    def grows(self) -> None:
        """Something is about to be written: once that is over the file is gone through, so that no reader has to wait.

        Meanwhile whoever writes needs the time, and most of what is written is read from memory.
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
        """At most `count` batches of the log under a key, with ids from `first` to `last`.

        Args:
            key: of the log's stream.
            first: term, and the offset behind the one that the first batch must hold.
            last: of the last entry that is wanted.
            count: of batches.
            join: as `LogStorage.read` has it; then these may be less than there are.

        Returns:
            What XRANGE would give, at least one batch; None: it has to be asked.
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
                    break  # the first batch of a piece comes in any case
            found += [StoredBatch(*each) for each in batches]
            taken += sum(each[3] for each in batches)
            if most < PIECE_BYTES:
                break  # these are all that fit
        return found

    def _turned(self) -> None:
        self._copied = 0

    def _is_known(self) -> bool:
        """Whether all that Valkey has written is known; else it is from some later moment on."""
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
        """As `_go_on`, while nothing is written: nobody waits for it, so no disk is read for it."""
        index = self._index
        while index is self._index and not self._grew and index.scan(self._fd, self._work) == _compiled.MORE:
            await asyncio.sleep(0)

    def _look(self) -> None:
        """Let go of a file that Valkey has left, though nobody reads."""
        self._timer = None
        if self._follow() and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _follow(self) -> bool:
        """Have the file open that Valkey writes to now; whether there is one."""
        if self._seen is not None:
            with contextlib.suppress(OSError):
                # Valkey writes a new manifest beside the old one, and gives it its name.
                if _seen(self._manifest.stat()) == self._seen:
                    return True
        self._leave()
        if not self._closed:
            with contextlib.suppress(OSError):
                self._open_named()
        return self._fd != _NOTHING

    def _open_named(self) -> None:
        """Open the file that the manifest names, if it names one. Raises OSError."""
        with self._manifest.open("rb") as manifest:
            seen = _seen(os.fstat(manifest.fileno()))
            text = manifest.read(_MANIFEST_BYTES)
        name = _file_of(text) if len(text) < _MANIFEST_BYTES else None
        if name is not None:
            self._fd = os.open(self._records / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            self._seen = seen
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _leave(self) -> None:
        """Forget the file: a descriptor would keep its bytes on the disk."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd != _NOTHING:
            os.close(self._fd)
            self._fd = _NOTHING
            self._index = _compiled.Index(MOST_PLACES)
        self._seen = None

    async def close(self) -> None:
        """Let go of the file; nothing is read from it any more."""
        self._closed = True
        if self._rest is not None:
            self._rest.cancel()
        self._leave()
        if self._scanning is not None:
            await end(self._scanning)


_Seen = tuple[int, int, int, int]


def _seen(facts: os.stat_result) -> _Seen:
    """What tells one manifest from another without reading it."""
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _file_of(manifest: bytes) -> str | None:
    """The name of the file that is written to: the last one that holds commands. None: there is none."""
    # `file appendonly.aof.2.incr.aof seq 2 type i`
    for line in reversed(manifest.decode("utf-8", "replace").splitlines()):
        words = line.split(" ")
        facts = dict(zip(words[::2], words[1::2], strict=False))
        if facts.get("type") == "i":
            name = facts.get("file", "")
            return name if name and "/" not in name and '"' not in name else None
    return None
