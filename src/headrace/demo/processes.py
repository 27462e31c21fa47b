"""The demo's directory and processes, each in a separate session, so that Ctrl-C reaches only the demo.

Every start empties the directory.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from headrace.demo import messages
from headrace.demo.messages import Asked, Ended, Failed, Ready, Told
from headrace.storage.errors import StoreError
from headrace.storage.valkey.datadir import DataDirectory
from headrace.storage.valkey.server import EmbeddedValkey
from headrace.text import environment

Heard = Told | Ready | Ended
Hear = Callable[["Child", Heard], None]
"""Receives a child's message, on the thread that reads it."""

_STOP_S = 15.0
_GRACE_S = 3.0
_POLL_S = 0.02
_LAST_LINES = 12


class Child:
    """A running process that sends messages."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        hear: Hear,
        log: Path,
        read: Callable[[bytes], Heard] = messages.told,
    ) -> None:
        """Start `python -m MODULE`, from the main thread: a child ends with the thread that started it.

        `hear` receives each message; the last is its end. `log` gets standard error. `read` parses standard output.
        """
        self.name = name
        self.log = log
        self._hear = hear
        self._read = read
        command = [sys.executable, "-m", "headrace.server.child", str(os.getpid()), module, *arguments]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment.child_environment(),
                start_new_session=True,
            )
        self.pid = self._process.pid
        threading.Thread(target=self._listen, name=f"{name} output", daemon=True).start()

    @property
    def running(self) -> bool:
        """Whether it is running."""
        return self._process.poll() is None

    def ask(self, message: Asked) -> None:
        """Send a request, unless it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            messages.tell(self._process.stdin, message)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    @property
    def status(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def last_words(self) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-_LAST_LINES:])

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has ended."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _listen(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        for line in self._process.stdout:
            if not line.endswith(b"\n"):  # incomplete after SIGKILL
                break
            try:
                message = self._read(line)
            except (msgspec.DecodeError, ValueError):
                message = Failed(f"sent a line that cannot be parsed: {line.decode(errors='replace').strip()[:200]}")
            self._hear(self, message)
        status = self._process.wait()
        self._process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._hear(self, Ended(status))


def read_ready_line(line: bytes) -> Heard:
    """Parse the server's ready line. Raises ValueError."""
    word, *pairs = line.decode().split()
    values = dict(pair.split("=", 1) for pair in pairs)
    if word != "ready":
        raise ValueError(word)
    return msgspec.convert(values, Ready)


def end(children: Sequence[Child]) -> None:
    """End children and their process groups: SIGTERM, then SIGKILL after 15 seconds."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + _STOP_S
    for child in children:
        ended = child.wait(max(0.0, deadline - time.monotonic()))
        # Spark's JVM ends after its Python, and may stay a zombie.
        grace = time.monotonic() + _GRACE_S
        while ended and _has_group(child.pid) and time.monotonic() < grace:
            time.sleep(_POLL_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(_STOP_S)


def _has_group(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


MARKER = "made-by-headrace-demo"
_MARKER_TEXT = "`headrace demo` empties this directory whenever it starts. Keep nothing here.\n"
_LOCKS = {"lock", "valkey.lock"}
"""Never removed: a lock on a removed file excludes no process."""


class DirectoryRefused(Exception):
    """The message has the reason and the remedy."""


def prepare_directory(path: Path) -> None:
    """Create or empty the directory, after ending an orphaned Valkey in it.

    Raises:
        DirectoryRefused: not a demo's directory, in use by a server, or not writable.
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
    end_orphan(path)
    with contextlib.closing(DataDirectory.open(path)) as directory:
        directory.remove_socket()
        for entry in path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name not in _LOCKS | {MARKER}:
                entry.unlink()


def end_orphan(path: Path) -> None:
    """End the orphaned Valkey of a killed server. Raises StoreError while the server runs."""
    if _has_orphan(path):
        asyncio.run(_take_over_and_end(path))


def _has_orphan(path: Path) -> bool:
    with contextlib.closing(DataDirectory.open(path)) as directory:
        lock = directory.lock_for_valkey()
        if lock is None:
            return True
        os.close(lock)
        return False


async def _take_over_and_end(path: Path) -> None:
    valkey = EmbeddedValkey(path)
    await valkey.start()
    await valkey.stop()
