"""The write-ahead journal: acknowledged batches that Redis may not have yet.

It is a memory-mapped file in the data directory. It survives the death of every process, but like Valkey's append-only
file it may not survive a power failure.

Its two halves are filled in turn. A half is overwritten after Redis has written its entries to its own file, so the
journal is small and its pages stay warm. Entry numbers only rise, which distinguishes new entries from old ones.
    0     b"HRJOURN2"
    8     number of the last entry that needs no replay, native order
    16    bytes of each half, native order
    24    8 random bytes of this file
    4096  the halves

Entries are little-endian and aligned to 8 bytes: see `_ENTRY`. The CRC-32C at their head covers the random bytes and
all up to the batch, so that no client can forge an entry inside a batch. The log's id, the stream's name and the batch,
with its own CRC, follow the fields.
"""

import contextlib
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Self

from headrace.records.accelerator import crc32c
from headrace.records.batch import check_stored
from headrace.records.errors import BatchError
from headrace.storage.errors import StoreError
from headrace.topics.model import Append

_MAGIC = b"HRJOURN2"
_HEAD_BYTES = 4096
_KEPT, _HALF = 1, 2  # indexes of 8-byte words in the head
_SALT = slice(24, 32)
_CRC = Struct("<I")
_ENTRY = Struct("<IQqqqqIihHH")
_BEFORE_NAME = _CRC.size + _ENTRY.size
_MOST_NAMES = 2_048
"""Maximum bytes of a log's id and its stream's name in an entry."""
_NEVER = 1 << 64
SMALLEST = 1 << 20
"""Minimum bytes of a journal: it must hold a batch or two."""


class Entry(NamedTuple):
    """A batch with its acknowledged place in its log."""

    number: int
    stream: str
    log_id: bytes
    """Distinguishes logs under the same key."""
    base_offset: int
    now_ms: int
    """Time of arrival in milliseconds since the epoch."""
    append: Append


class Found(NamedTuple):
    """Entries of an earlier server that Redis may not have written."""

    entries: list[Entry]
    """Whole entries, in order."""
    damaged: list[range]
    """Numbers of damaged entries between the last one that needs no replay and the newest one."""


class _Place(NamedTuple):
    number: int
    entry: Entry | None
    """None: the batch is damaged."""
    following: int
    """Where the next entry may begin."""


class Journal:
    """The journal of the server that holds the data directory's lock."""

    def __init__(self, path: Path, descriptor: int, length: int) -> None:
        """Use `open`."""
        self._path = path
        self._directory, self._file = _place_of(path.parent.stat()), _place_of(os.fstat(descriptor))
        self._map = mmap.mmap(descriptor, length)
        self._words = memoryview(self._map)[:24].cast("Q")
        self._half_bytes = self._words[_HALF]
        self._salt = self._map[_SALT]
        self._number = 0
        self._newest: int | None = None
        """Number of the newest entry at the last scan: a start scans the file once."""
        self._half = 0
        self._position = self._end = 0
        # No half has room before `renewed`.
        self._last = [_NEVER, _NEVER]
        """Number of the last entry in each half."""

    @classmethod
    def open(cls, path: Path, size: int, *, must_create: bool = False) -> Self:
        """Open or create a data directory's journal.

        A new file has `size` bytes, an existing one is unchanged (see `renewed`). With `must_create`, an existing file
        is an error, and a failure leaves none.

        Raises:
            StoreError: it cannot be created, or the file is no journal.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(path, flags | os.O_EXCL if must_create else flags, 0o600)
        except FileExistsError:
            raise StoreError(f"{path} is another file than it was: move it away") from None
        except OSError as error:
            raise StoreError(
                f"cannot open the journal {path}: {error.strerror}; it must be a file that this user may write"
            ) from None
        try:
            length = os.fstat(descriptor).st_size
            if length < _HEAD_BYTES or _is_new(descriptor):
                length = _make(descriptor, size)
            elif trouble := _trouble(descriptor, length):
                raise StoreError(f"{path} {trouble}")
            else:
                # A hole without free space would cause a bus error at a write.
                os.posix_fallocate(descriptor, 0, length)
            return cls(path, descriptor, length)
        except OSError as error:
            if must_create:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise StoreError(
                f"cannot make the journal {path}: {error.strerror}; make room there, or choose another directory with "
                "--data"
            ) from None
        finally:
            os.close(descriptor)

    def _bounds(self, half: int) -> tuple[int, int]:
        start = _HEAD_BYTES + half * self._half_bytes
        return start, start + self._half_bytes

    @property
    def path(self) -> Path:
        """Return the path."""
        return self._path

    @property
    def in_place(self) -> bool:
        """Return whether the file is at its path."""
        try:
            return _place_of(self._path.lstat()) == self._file
        except OSError:
            return False

    @property
    def size(self) -> int:
        """Return the size of the file in bytes."""
        return len(self._map)

    @property
    def number(self) -> int:
        """Return the number of the newest entry."""
        return self._number

    def add(self, stream: bytes, log_id: bytes, base_offset: int, now_ms: int, append: Append) -> int:
        """Enter a batch of the log with this key and id, and return its number, or 0 if there is no room."""
        batch = append.batch
        names = log_id + stream
        size, name = len(batch), len(names)
        start = self._position
        body = start + _BEFORE_NAME + name
        if body + size > self._end:
            if not self._turn(_BEFORE_NAME + name + size):
                return 0
            start = self._position
            body = start + _BEFORE_NAME + name
        self._number = number = self._number + 1
        about = (
            _ENTRY.pack(
                size,
                number,
                base_offset,
                append.max_timestamp,
                now_ms,
                append.producer_id,
                append.span,
                append.base_sequence,
                append.producer_epoch,
                len(log_id),
                len(stream),
            )
            + names
        )
        mapped = self._map
        # The head is written last: an entry that a kill interrupts is invalid and was not acknowledged.
        mapped[body : body + size] = batch
        mapped[start:body] = _CRC.pack(crc32c(self._salt + about)) + about
        self._position = (body + size + 7) & ~7
        self._last[self._half] = number
        return number

    def _turn(self, size: int) -> bool:
        other = 1 - self._half
        if self._last[other] > self._words[_KEPT] or size > self._half_bytes:
            return False
        self._half = other
        self._position, self._end = self._bounds(other)
        return True

    def kept(self, number: int) -> None:
        """Mark all entries up to this number as not to be replayed."""
        # One aligned store of 8 bytes is atomic for readers after a kill.
        self._words[_KEPT] = number

    def in_doubt(self) -> list[Entry]:
        """Return the entries that Redis may not have written, in order."""
        return self.found().entries

    def found(self) -> Found:
        """Return the same entries and the damaged ones. Nothing in doubt is overwritten.

        A newest entry with a damaged head looks like an interrupted write.
        """
        places = [place for half in (0, 1) for place in self._entries(half)]
        self._newest = max((place.number for place in places), default=0)
        kept = self._words[_KEPT]
        entries = sorted(
            (place.entry for place in places if place.entry is not None and place.number > kept),
            key=lambda entry: entry.number,
        )
        damaged, last = [], max(kept, self._given_up())
        for number in (*(entry.number for entry in entries), max(self._newest, last) + 1):
            if number > last + 1:
                damaged.append(range(last + 1, number))
            last = max(last, number)
        return Found(entries, damaged)

    def _given_up(self) -> int:
        """After a power failure, the number in the head may be too old. See `_turn`."""
        first = [self._entry(*self._bounds(half)) for half in (0, 1)]
        return min((0 if place is None else place.number - 1 for place in first), default=0)

    def renewed(self, size: int, above: int = 0) -> "Journal":
        """Return an empty journal of `size` bytes, for entries with numbers above `above` and above all existing ones.

        Raises:
            StoreError: it cannot be created.
        """
        if self.size != _length(size):
            self.remove()
            return Journal.open(self._path, size).renewed(size, above)
        if self._newest is None:
            self.found()
        self._number = max(self._number, above, self._newest or 0, self._words[_KEPT])
        self.kept(self._number)
        self._last = [self._number, self._number]
        self._half = 0
        self._position, self._end = self._bounds(0)
        return self

    def again(self) -> "Journal":
        """Replace a removed file whose entries Redis has, and continue its numbers.

        This blocks until the disk has allocated the file.

        Raises:
            StoreError: it cannot be created, or another file exists.
        """
        try:
            same = _place_of(self._path.parent.stat()) == self._directory
        except OSError:
            same = False
        if not same:
            raise StoreError(f"{self._path.parent} is not the directory that it was: put it back")
        return Journal.open(self._path, self.size, must_create=True).renewed(self.size, above=self._number)

    def _entries(self, half: int) -> Iterator[_Place]:
        """Yield consecutive entries from the beginning of a half, then later ones that are in doubt.

        These exist if the head of an earlier entry is damaged.
        """
        position, end = self._bounds(half)
        newest: int | None = None
        while (found := self._entry(position, end)) is not None and newest in {None, found.number - 1}:
            yield found
            newest, position = found.number, found.following
        least = max(newest or 0, self._words[_KEPT])
        for place in self._numbered_above(least, position, end):
            if place >= position and (found := self._entry(place, end)) is not None and found.number > least:
                yield found
                least, position = found.number, found.following

    def _numbered_above(self, least: int, start: int, end: int) -> list[int]:
        most = least + (end - start) // _BEFORE_NAME
        number_at = 8  # after the CRC and the length
        rest = self._map[start:end].rstrip(b"\0")
        words = memoryview(rest + bytes(-len(rest) % 8)).cast("Q")
        # The word before an entry's number has the batch's length, which is not 0.
        return [
            start + 8 * place - number_at
            for place, word in enumerate(words)
            if least < word <= most and words[place - 1] >> 32
        ]

    def _entry(self, start: int, end: int) -> _Place | None:
        name_at = start + _BEFORE_NAME
        if name_at > end:
            return None
        mapped = self._map
        fields = _ENTRY.unpack_from(mapped, start + _CRC.size)
        size, number, base_offset, max_timestamp, now_ms, producer_id, span, sequence, epoch, log_id, name = fields
        body = name_at + log_id + name
        if log_id + name > _MOST_NAMES or body + size > end:
            return None
        if _CRC.unpack_from(mapped, start)[0] != crc32c(self._salt + mapped[start + _CRC.size : body]):
            return None
        batch = bytearray(mapped[body : body + size])
        following = (body + size + 7) & ~7
        try:
            check_stored(batch)
        except BatchError:
            return _Place(number, None, following)
        append = Append(batch, span, max_timestamp, producer_id, epoch, sequence)
        stream = mapped[name_at + log_id : body].decode()
        entry = Entry(number, stream, mapped[name_at : name_at + log_id], base_offset, now_ms, append)
        return _Place(number, entry, following)

    def close(self) -> None:
        """Unmap the file."""
        self._words.release()
        self._map.close()

    def set_aside(self) -> Path:
        """Close and rename the file for inspection, and return its new path."""
        self.close()
        place = next(
            place for number in range(1, 10_000) if not (place := Path(f"{self._path}.set-aside-{number}")).exists()
        )
        self._path.rename(place)
        return place

    def remove(self) -> None:
        """Close and remove the file."""
        self.close()
        self._path.unlink(missing_ok=True)


def trouble(path: Path) -> str | None:
    """Return why no server would start with this file, to be read after its name, or None.

    Raises OSError if it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        length = os.fstat(descriptor).st_size
        return None if length < _HEAD_BYTES or _is_new(descriptor) else _trouble(descriptor, length)
    finally:
        os.close(descriptor)


def _length(size: int) -> int:
    return _HEAD_BYTES + 2 * (max(size, SMALLEST) // 2 & ~4095)


def _make(descriptor: int, size: int) -> int:
    length = _length(size)
    os.ftruncate(descriptor, 0)
    # Allocate now: a page without space would cause a bus error later.
    os.posix_fallocate(descriptor, 0, length)
    os.pwrite(descriptor, bytes(8) + _word((length - _HEAD_BYTES) // 2) + os.urandom(8), 8)
    os.pwrite(descriptor, _MAGIC, 0)
    return length


def _place_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _word(value: int) -> bytes:
    return value.to_bytes(8, sys.byteorder)


def _is_new(descriptor: int) -> bool:
    """Also true after an interrupted creation."""
    return os.pread(descriptor, 8, 0) == bytes(8)


def _trouble(descriptor: int, length: int) -> str | None:
    head = os.pread(descriptor, 24, 0)
    if head == _MAGIC + head[8:16] + _word((length - _HEAD_BYTES) // 2):
        return None
    if head[:7] == _MAGIC[:7] and head[7:8] != _MAGIC[7:8] and head[7:8].isdigit():
        return (
            f"is of another version of Headrace (journal {head[7:8].decode()}, this one has {_MAGIC[7:].decode()}), "
            "and so is the data next to it: start the version that wrote it, or name another data directory"
        )
    return "is damaged, or no journal: what it holds may be missing from Redis. Move it away to start without that"
