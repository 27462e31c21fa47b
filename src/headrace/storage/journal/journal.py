"""The write-ahead journal: batches that have been acknowledged and may not be in Redis yet.

A file in the data directory, mapped into memory: what is copied there is in the kernel's page cache at once and
survives the death of every process, as what Valkey has written to its append-only file does; like that, it may not
survive a loss of power.
It has two halves. One is written from its beginning to its end, then the other, as soon as Redis is known to have
written all that is in it to its own file; so the journal is small and its pages stay warm. Entries are numbered for
ever, which tells those of this lap from what is left of earlier ones; the file's head has the number up to which Redis
has them.

    0    b"HRJOURN2"
    8    number of the last entry that needs no replay, 8 bytes as the machine has them
    16   bytes of each half, 8 bytes as the machine has them
    24   8 random bytes of this file's own
    4096 the halves, one after the other

An entry, little-endian, begins at a multiple of eight: CRC-32C of the file's random bytes and what follows it up to
the batch (so nobody can send a batch with something in it that passes for an entry); bytes of the batch; number; base
offset; largest timestamp; time of arrival; producer id; offset span; first sequence; producer epoch; bytes of the
log's id; bytes of the stream's name; the id; the name; the batch, which has a CRC of its own.
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
from headrace.records.batch import check
from headrace.records.errors import BatchError
from headrace.storage.errors import StoreError
from headrace.topics.model import Append

_MAGIC = b"HRJOURN2"
_HEAD_BYTES = 4096
_KEPT, _HALF = 1, 2  # places of 8 bytes in the head
_SALT = slice(24, 32)
_CRC = Struct("<I")
_ENTRY = Struct("<IQqqqqIihHH")
_BEFORE_NAME = _CRC.size + _ENTRY.size
_MOST_NAMES = 2_048
"""Bytes of a log's id and its stream's name; what claims more is no entry."""
_NEVER = 1 << 64
SMALLEST = 1 << 20
"""Bytes below which a journal is not worth its name: it must hold a batch or two."""


class Entry(NamedTuple):
    """A batch with the place in its log that it was acknowledged with."""

    number: int
    stream: str
    log_id: bytes
    """Tells the log from an earlier or later one under the same key."""
    base_offset: int
    now_ms: int
    """When it arrived: milliseconds since the epoch."""
    append: Append


class Found(NamedTuple):
    """What an earlier server has left that Redis is not known to have written down."""

    entries: list[Entry]
    """Whole ones, in order."""
    damaged: list[range]
    """Numbers between the last entry that needs no replay and the newest one that have no whole entry any more."""


class _Place(NamedTuple):
    """What lies at a position where the head of an entry is whole."""

    number: int
    entry: Entry | None
    """None: its batch is damaged."""
    following: int
    """Where the next one may be."""


class Journal:
    """The journal of the server that has the data directory's lock."""

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
        """The number of the newest entry when somebody looked last: a start looks through the file once."""
        self._half = 0
        self._position = self._end = 0
        # Until `renewed` has said that what is there may go, there is no room in either half.
        self._last = [_NEVER, _NEVER]
        """The number of the last entry in each half."""

    @classmethod
    def open(cls, path: Path, size: int, *, anew: bool = False) -> Self:
        """Open a data directory's journal, made where it is missing.

        Args:
            path: of the file.
            size: bytes that a new one has; one that is there stays as it is (see `renewed`).
            anew: nothing may be there; where none can be made, nothing is there afterwards.

        Raises:
            StoreError: it cannot be made or is not a journal.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(path, flags | os.O_EXCL if anew else flags, 0o600)
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
                # A copy may have holes, and there may be no room for them when a batch comes: that is a bus error.
                os.posix_fallocate(descriptor, 0, length)
            return cls(path, descriptor, length)
        except OSError as error:
            if anew:
                # It would pass for somebody else's the next time.
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
        """The file."""
        return self._path

    @property
    def in_place(self) -> bool:
        """Whether the file is still where a start looks for it: what is entered is found there."""
        try:
            return _place_of(self._path.lstat()) == self._file
        except OSError:
            return False

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._map)

    @property
    def number(self) -> int:
        """Number of the newest entry."""
        return self._number

    def add(self, stream: bytes, log_id: bytes, base_offset: int, now_ms: int, append: Append) -> int:
        """Enter a batch.

        Args:
            stream: its log's key.
            log_id: tells the log from others under that key.
            base_offset: the offset that it is acknowledged with.
            now_ms: milliseconds since the epoch.
            append: the batch and what was read of it.

        Returns:
            Its number; 0 when there is no room, since too much of the journal waits to be stored.
        """
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
        # The head is whole last: whoever is killed in between has entered nothing, and has told nobody either.
        mapped[body : body + size] = batch
        mapped[start:body] = _CRC.pack(crc32c(self._salt + about)) + about
        self._position = (body + size + 7) & ~7
        self._last[self._half] = number
        return number

    def _turn(self, size: int) -> bool:
        """Go on in the other half, if Redis has written down all that is in it and an entry of `size` bytes fits."""
        other = 1 - self._half
        if self._last[other] > self._words[_KEPT] or size > self._half_bytes:
            return False
        self._half = other
        self._position, self._end = self._bounds(other)
        return True

    def kept(self, number: int) -> None:
        """Every entry up to this number is in the file of Redis, or needs not be: it is not to be replayed."""
        # One aligned store of eight bytes: whoever reads it after a kill finds the old number or the new one.
        self._words[_KEPT] = number

    def in_doubt(self) -> list[Entry]:
        """What an earlier server has entered and Redis is not known to have written down, in order."""
        return self.found().entries

    def found(self) -> Found:
        """The same, and which entries between them are damaged: nothing in doubt is ever written over.

        The newest one is known by its head: where that is damaged too, nothing tells it from what a kill has cut off.
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
        """The newest number that Redis is known to have had by where the halves begin: see `_turn`.

        After a loss of power the number in the head may be older than what lies behind it.
        """
        first = [self._entry(*self._bounds(half)) for half in (0, 1)]
        return min((0 if place is None else place.number - 1 for place in first), default=0)

    def renewed(self, size: int, above: int = 0) -> "Journal":
        """Begin anew: nothing that is there is of use any more.

        Args:
            size: its bytes from now on.
            above: entries have numbers above this one, and above those that are there.

        Raises:
            StoreError: it cannot be made.
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
        """A file where this one was removed; its entries go on with these numbers. Everything entered is in Redis.

        This takes as long as the disk needs to make room.

        Raises:
            StoreError: it cannot be made, or something else is there now.
        """
        try:
            same = _place_of(self._path.parent.stat()) == self._directory
        except OSError:
            same = False
        if not same:
            raise StoreError(f"{self._path.parent} is not the directory that it was: put it back")
        return Journal.open(self._path, self.size, anew=True).renewed(self.size, above=self._number)

    def _entries(self, half: int) -> Iterator[_Place]:
        """Entries from the beginning of a half on, as long as their numbers go on, and any in doubt behind.

        There are such where the head of one before them is damaged. What is left of earlier laps needs no replay for
        certain.
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
        """Where entries with a number above `least` may begin, and other things that look like one."""
        most = least + (end - start) // _BEFORE_NAME
        number_at = 8  # behind its CRC and its length
        rest = self._map[start:end].rstrip(b"\0")
        words = memoryview(rest + bytes(-len(rest) % 8)).cast("Q")
        # Before an entry's number are its batch's bytes, which are not 0, as they are among small numbers in a payload.
        return [
            start + 8 * place - number_at
            for place, word in enumerate(words)
            if least < word <= most and words[place - 1] >> 32
        ]

    def _entry(self, start: int, end: int) -> _Place | None:
        """The entry at a position; None when there is none with a whole head."""
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
            check(batch)
        except BatchError:
            return _Place(number, None, following)
        append = Append(batch, span, max_timestamp, producer_id, epoch, sequence)
        stream = mapped[name_at + log_id : body].decode()
        entry = Entry(number, stream, mapped[name_at : name_at + log_id], base_offset, now_ms, append)
        return _Place(number, entry, following)

    def close(self) -> None:
        """Unmap the file; what is in it stays."""
        self._words.release()
        self._map.close()

    def set_aside(self) -> Path:
        """Close it and rename the file, so that somebody can look into it; its new path."""
        self.close()
        place = next(
            place for number in range(1, 10_000) if not (place := Path(f"{self._path}.set-aside-{number}")).exists()
        )
        self._path.rename(place)
        return place

    def remove(self) -> None:
        """Close it and remove the file."""
        self.close()
        self._path.unlink(missing_ok=True)


def trouble(path: Path) -> str | None:
    """Why no server would start on this file, to be read after its name; None: one would, or the file is not there.

    Raises OSError: it cannot be read.
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
    """Bytes of the file of a journal that shall have about `size`."""
    return _HEAD_BYTES + 2 * (max(size, SMALLEST) // 2 & ~4095)


def _make(descriptor: int, size: int) -> int:
    """Lay out a new journal; its length."""
    length = _length(size)
    os.ftruncate(descriptor, 0)
    # Room on the disk now, rather than a bus error when a page finds none later.
    os.posix_fallocate(descriptor, 0, length)
    os.pwrite(descriptor, bytes(8) + _word((length - _HEAD_BYTES) // 2) + os.urandom(8), 8)
    os.pwrite(descriptor, _MAGIC, 0)
    return length


def _place_of(found: os.stat_result) -> tuple[int, int]:
    """What tells a file from every other one on this machine."""
    return found.st_dev, found.st_ino


def _word(value: int) -> bytes:
    return value.to_bytes(8, sys.byteorder)


def _is_new(descriptor: int) -> bool:
    """Whether it was made just now, or cut off by a kill while it was: nothing was ever entered."""
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
