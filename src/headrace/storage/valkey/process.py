"""A Valkey process, our child or one that an earlier server left behind, watched through a pidfd.

A pidfd tells the end of any process, child or not, and a signal sent through it cannot hit another process that got
the same pid later.
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
    """A running Valkey. Belongs to the event loop it was made in; `close` ends the watch, not the process."""

    def __init__(self, pid: int, child: "subprocess.Popen[bytes] | None") -> None:
        """Watch a process; raises ProcessLookupError when there is none of that pid."""
        self.pid = pid
        self.on_exit: Callable[[], None] | None = None
        self._child = child
        self._exited = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(pid)
        self._loop.add_reader(self._pidfd, self._has_exited)

    @classmethod
    def spawn(cls, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path, lock: int) -> Self:
        """Start one.

        Args:
            command: the program and its arguments.
            environment: all of its environment.
            folder: where it runs.
            log: file that its output is added to.
            lock: descriptor that it inherits.

        Raises:
            StoreError: the program cannot be run.
            OSError: the log cannot be written.
        """
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
                    # Its files hold the records. They are its user's alone.
                    umask=0o077,
                    # Ctrl-C in a terminal is for the server, which needs its Valkey until it has stopped.
                    start_new_session=True,
                )
            except OSError as error:
                raise StoreError(f"cannot start the embedded Valkey {command[0]}: {error.strerror}") from None
        return cls(child.pid, child)

    @property
    def exited(self) -> bool:
        """Whether it has ended."""
        return self._exited.is_set()

    @property
    def ending(self) -> str:
        """How it ended, as the end of a sentence; empty when it has not, or was not our child."""
        status = self._child.returncode if self._child is not None else None
        if status is None:
            return ""
        return f" by {signal.Signals(-status).name}" if status < 0 else f" with status {status}"

    async def wait(self, limit_s: float) -> bool:
        """Wait for its end, for `limit_s` seconds at most; whether it has ended."""
        if not self.exited:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._exited.wait()
        return self.exited

    def send(self, number: signal.Signals) -> None:
        """Send a signal; harmless when it has ended."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        """Stop watching the process; it is left running."""
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
    """Pid and user id of the process that listens on a unix socket; None when none takes a connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.setblocking(False)
        try:
            link.connect(os.fspath(path))
        except OSError:
            return None
        pid, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return (pid, uid) if pid > 0 else None


def runs_in(pid: int, folder: Path) -> bool:
    """Whether the process has `folder` as its current directory, as a Valkey has its data directory."""
    try:
        return Path(f"/proc/{pid}/cwd").samefile(folder)
    except OSError:
        return False


def runs_program(pid: int, program: Path) -> bool:
    """Whether the process runs this very file, not another version of it that lay there before."""
    try:
        return Path(f"/proc/{pid}/exe").samefile(program)
    except OSError:
        return False


def valkeys_in(folder: Path) -> list[int]:
    """Pids of every Valkey that runs in `folder`, the child that rewrites its file included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and runs_in(int(entry.name), folder):
            with contextlib.suppress(OSError):
                if Path(entry, "exe").readlink().name.startswith(("valkey-", "redis-")):
                    found.append(int(entry.name))
    return found
