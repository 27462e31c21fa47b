"""A Valkey process, our child or one of an earlier server, watched through a pidfd.

It reports the end of any process, and its signals cannot reach another process that got the same pid.
"""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from headrace.storage.errors import StoreError


class ValkeyProcess:
    """A running Valkey, bound to its event loop. `close` ends the watch, not the process."""

    def __init__(self, pid: int, child: "subprocess.Popen[bytes] | None") -> None:
        """Watch a process. Raises ProcessLookupError."""
        self.pid = pid
        self.on_exit: Callable[[], None] | None = None
        self._child = child
        self._exited = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(pid)
        self._loop.add_reader(self._pidfd, self._has_exited)

    @classmethod
    def spawn(cls, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path, lock: int) -> Self:
        """Start a Valkey that inherits a locked descriptor. Raises StoreError, or OSError for the log."""
        with log.open("ab") as output:
            try:
                child = subprocess.Popen(
                    command,
                    env=environment,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[lock],
                    umask=0o077,
                    # Ctrl-C must stop the server first.
                    start_new_session=True,
                )
            except OSError as error:
                raise StoreError(f"cannot start the embedded Valkey {command[0]}: {error.strerror}") from None
        return cls(child.pid, child)

    @property
    def exited(self) -> bool:
        """Return whether it has ended."""
        return self._exited.is_set()

    @property
    def ending(self) -> str:
        """Return how it ended, as the end of a sentence."""
        status = self._child.returncode if self._child is not None else None
        if status is None:
            return ""
        return f" by {signal.Signals(-status).name}" if status < 0 else f" with status {status}"

    async def wait(self, limit_s: float) -> bool:
        """Wait up to `limit_s` seconds, and return whether it has ended."""
        if not self.exited:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._exited.wait()
        return self.exited

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        """Stop watching the process."""
        self.on_exit = None
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _has_exited(self) -> None:
        callback = self.on_exit
        self.close()
        if self._child is not None:
            self._child.wait()
        self._exited.set()
        if callback is not None:
            callback()


def listener_of(path: Path) -> tuple[int, int] | None:
    """Return pid and user id of the listener on a Unix socket, or None."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.setblocking(False)
        try:
            link.connect(os.fspath(path))
        except OSError:
            return None
        pid, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return (pid, uid) if pid > 0 else None


def runs_in(pid: int, folder: Path) -> bool:
    """Return whether the process runs in `folder`."""
    try:
        return Path(f"/proc/{pid}/cwd").samefile(folder)
    except OSError:
        return False


def runs_program(pid: int, program: Path) -> bool:
    """Return whether the process runs this file, not an earlier version of it."""
    try:
        return Path(f"/proc/{pid}/exe").samefile(program)
    except OSError:
        return False


def valkeys_in(folder: Path) -> list[int]:
    """Return the pids of all Valkeys in `folder`, including a child that rewrites the file."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and runs_in(int(entry.name), folder):
            with contextlib.suppress(OSError):
                if Path(entry, "exe").readlink().name.startswith(("valkey-", "redis-")):
                    found.append(int(entry.name))
    return found
