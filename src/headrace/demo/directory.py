"""The demo's directory: the server's data, the table and the logs, emptied at every start, and nobody else's files."""

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

from headrace.storage.errors import StoreError
from headrace.storage.valkey.datadir import DataDirectory
from headrace.storage.valkey.server import EmbeddedValkey

MARKER = "made-by-headrace-demo"
_MARKER_TEXT = "`headrace demo` empties this directory whenever it starts. Keep nothing here.\n"
_LOCKS = {"lock", "valkey.lock"}
"""Stay: a lock on a file that was removed keeps nobody out."""


class DirectoryRefused(Exception):
    """The directory will not be emptied. The message is one line: why, and what to do."""


def prepare(path: Path) -> None:
    """Make the directory, or empty it; a Valkey that outlived its server there is ended first.

    Raises:
        DirectoryRefused: it is not a demo's directory, a server uses it, or it cannot be written.
    """
    if path.exists() and not path.is_dir():
        raise DirectoryRefused(f"{path} is not a directory; choose another with --data")
    if path.is_dir() and not (path / MARKER).is_file() and any(path.iterdir()):
        raise DirectoryRefused(
            f"{path} was not made by `headrace demo`, which would empty it; choose another directory with --data"
        )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path / MARKER).write_text(_MARKER_TEXT, "utf-8")
        _empty(path)
    except StoreError as error:
        raise DirectoryRefused(str(error)) from None
    except OSError as error:
        raise DirectoryRefused(f"cannot use {path}: {error.strerror}; choose another with --data") from None


def _empty(path: Path) -> None:
    """Remove all but locks and marker, under the server's lock. Raises StoreError when a server has it."""
    end_orphan(path)
    with contextlib.closing(DataDirectory.open(path)) as directory:
        directory.remove_socket()
        for entry in path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name not in _LOCKS | {MARKER}:
                entry.unlink()


def end_orphan(path: Path) -> None:
    """End a Valkey whose server was killed, if one runs there. Raises StoreError when the server is there too."""
    if _has_orphan(path):
        asyncio.run(_take_over_and_end(path))


def _has_orphan(path: Path) -> bool:
    """Whether a Valkey runs there without its server. Raises StoreError when the server is there too."""
    with contextlib.closing(DataDirectory.open(path)) as directory:
        lock = directory.lock_for_valkey()
        if lock is None:
            return True
        os.close(lock)
        return False


async def _take_over_and_end(path: Path) -> None:
    """Take the Valkey over as a server would, and end it in order."""
    valkey = EmbeddedValkey(path)
    await valkey.start()
    await valkey.stop()
