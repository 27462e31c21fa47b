"""Copy a data directory while its server runs.

The copy is what a crash at the same moment would have left, so the next start recovers it like any crash:

- The journal is copied first. A batch that is acknowledged before the copy is in the journal, or in the append-only
  file, which is copied afterwards. Sending a batch again is harmless (decision 0015).
- The append-only file is copied in the state of one manifest. Open files keep their content during a rewrite, and the
  last file may end within a command (`aof-load-truncated`).
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from headrace.storage.errors import StoreError
from headrace.storage.journal import journal
from headrace.storage.journal.journal import Journal
from headrace.storage.valkey.datadir import MANIFEST, RECORDS, has_records

PARTIAL: Final = ".partial"
"""Suffix of a backup in progress."""
_JOURNAL: Final = "journal"
_HEAD_BYTES: Final = 32
"""The part of the journal that identifies it and has its mark."""
_ATTEMPTS: Final = 100
_CHUNK_BYTES: Final = 1 << 20
_HISTORY: Final = "h"
"""Type of files in the manifest that a finished rewrite replaced."""


class Copied(msgspec.Struct, frozen=True):
    """A finished backup."""

    path: Path
    size: int
    """Bytes of all files."""


def back_up(data: Path, target: Path) -> Copied:
    """Copy a data directory to `target`, which appears when it is complete and on disk.

    Raises:
        StoreError: there are no records, the target exists, or the disk is full.
    """
    if not has_records(data):
        raise StoreError(f"{data} has no records: it is not the data directory of a server, or its user differs")
    if target.exists() or target.is_symlink():
        raise StoreError(f"{target} exists: choose another directory")
    draft = target.with_name(target.name + PARTIAL)
    made = False
    try:
        draft.mkdir(mode=0o700)
        made = True
        _copy_journal(data / _JOURNAL, draft / _JOURNAL)
        _copy_records(data / RECORDS, draft / RECORDS)
        size = sum(each.stat().st_size for each in draft.rglob("*") if each.is_file())
        _sync(draft / RECORDS)
        _sync(draft)
        draft.rename(target)
        _sync(target.absolute().parent)
    except OSError as error:
        raise StoreError(_explained(error, draft, made=made)) from None
    finally:
        if made:
            shutil.rmtree(draft, ignore_errors=True)
    return Copied(target, size)


def _explained(error: OSError, draft: Path, *, made: bool) -> str:
    if not made and isinstance(error, FileExistsError):
        return f"{draft} exists: another backup is running, or was killed. Remove it, or choose another directory"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"cannot write {draft}: {error.strerror}. Nothing is kept: make room, or choose another disk"
    return f"cannot back up to {draft}: {error.filename or draft}: {error.strerror}"


def _copy_journal(source: Path, target: Path) -> None:
    """Copy a file that the server changes at any time, until the copy is one that a start accepts."""
    if trouble := journal.trouble(source):
        raise StoreError(f"{source} {trouble}")
    for _ in range(_ATTEMPTS):
        try:
            content = bytearray(source.read_bytes())
            with source.open("rb") as file:
                # The append-only file has the entries that were overwritten during the read. The head is newer.
                head = file.read(_HEAD_BYTES)
        except FileNotFoundError:
            return  # there is none, or it is being replaced, and then batches wait for the append-only file
        content[: len(head)] = head
        _write(target, iter([bytes(content)]))
        copied = Journal.open(target, len(content))
        try:
            if not copied.found().damaged:
                return
        finally:
            copied.close()
    raise StoreError(f"the copies of {source} are damaged: back up again at lower write load")


def _copy_records(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700)
    with contextlib.ExitStack() as stack:
        manifest, files = _opened(source, stack)
        # The end of each file now: the server may write faster than this copies.
        sizes = {name: os.fstat(file.fileno()).st_size for name, file in files.items()}
        for name, file in files.items():
            _write(target / name, _content(file, sizes[name]))
        _write(target / MANIFEST, iter([manifest]))


def _opened(source: Path, stack: contextlib.ExitStack) -> tuple[bytes, dict[str, IO[bytes]]]:
    """Return the manifest without history, and its files, opened while it was the current one."""
    for _ in range(_ATTEMPTS):
        opened = contextlib.ExitStack()
        with opened:
            try:
                manifest = (source / MANIFEST).read_bytes()
                lines = [line for line in manifest.decode().splitlines(keepends=True) if _type(line) != _HISTORY]
                files: dict[str, IO[bytes]] = {}
                for name in map(listed_file, lines):
                    files[name] = opened.enter_context((source / name).open("rb"))
                if (source / MANIFEST).read_bytes() == manifest:
                    stack.push(opened.pop_all())
                    return "".join(lines).encode(), files
            except FileNotFoundError as error:
                if not (source / MANIFEST).exists():
                    raise StoreError(f"{source} has no {MANIFEST}: the data directory is incomplete") from error
    raise StoreError(f"the files in {source} keep changing: back up again later")


def listed_file(line: str) -> str:
    """Return the file of a line: `file NAME seq NUMBER type b`."""
    words = line.split()
    name = words[1] if len(words) >= 2 and words[0] == "file" else ""
    if not name or Path(name).name != name:
        raise StoreError(f"the manifest of the append-only file has the line {line!r}, which is not supported")
    return name


def _type(line: str) -> str:
    return line.rsplit(maxsplit=1)[-1] if line.strip() else _HISTORY


def _content(file: IO[bytes], size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := file.read(min(size, _CHUNK_BYTES))):
        size -= len(chunk)
        yield chunk


def _write(path: Path, content: Iterator[bytes]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
