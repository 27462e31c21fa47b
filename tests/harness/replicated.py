"""A Redis or Valkey with replicas on this machine, each on a loopback address of its own."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.harness.ports import loopback_network
from tests.harness.redis import valkey_program
from tests.harness.waiting import wait_for

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
_KEPT = ("appendonly yes", "appendfsync no", 'save ""', "repl-diskless-sync-delay 0", "maxmemory-policy noeviction")


class Process:
    """A server of a configuration file of its own, on a loopback address of its own."""

    def __init__(
        self, program: Path, folder: Path, host: str, port: int, *lines: str, login: Mapping[str, Any] = {}
    ) -> None:
        """Start it, and wait until it answers; `lines` are of its configuration, `login` is what redis-py needs."""
        folder.mkdir()
        self.host, self.port = host, port
        self._login = login
        file = folder / "conf"
        own = (f"bind {host}", f"port {port}", "protected-mode no", f"dir {folder}", f"logfile {folder / 'log'}")
        file.write_text("\n".join((*own, *lines)) + "\n")
        sentinel = ["--sentinel"] if port == SENTINEL_PORT else []
        self._process = subprocess.Popen([os.fspath(program), os.fspath(file), *sentinel])
        wait_for(self._answers, f"{host} to answer")

    def _answers(self) -> bool:
        try:
            return bool(self.ask("PING"))
        except redis.RedisError:
            return False

    def ask(self, *command: str | int) -> list[object]:
        """What it answers to a command, as a list."""
        # A demotion of the primary ends its connections, perhaps this one.
        with redis.Redis(
            self.host, self.port, decode_responses=True, retry=Retry(NoBackoff(), 3), **self._login
        ) as link:
            link.response_callbacks.clear()
            found = link.execute_command(*command)
            return found if isinstance(found, list) else [found]

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()


def _follows(replica: Process) -> bool:
    return replica.ask("ROLE")[3] == "connected"


class Replicated:
    """A primary and its replicas; a context manager starts and ends them."""

    def __init__(self, program: Path | None = None, replicas: int = 1) -> None:
        """Nothing runs yet; `program`: the server to run, the embedded Valkey if None."""
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-replicated-"))
        self._program = program or valkey_program()
        self._network = loopback_network()
        self._replicas = replicas
        self._processes: list[Process] = []

    @property
    def primary(self) -> Process:
        """The one that was started as the primary."""
        return self._processes[0]

    @property
    def replicas(self) -> list[Process]:
        """The others."""
        return self._processes[1:]

    @property
    def url(self) -> str:
        """The storage URL."""
        return f"redis://{self.primary.host}:{PORT}"

    def __enter__(self) -> Self:
        try:
            for place in range(1 + self._replicas):
                self._start(place)
            for replica in self.replicas:
                replica.ask("REPLICAOF", self.primary.host, PORT)
            for replica in self.replicas:
                wait_for(partial(_follows, replica), f"{replica.host} to follow")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _start(self, place: int) -> None:
        folder, host = self._folder / str(place), f"{self._network}.{place + 1}"
        self._processes.append(Process(self._program, folder, host, PORT, *_KEPT, f"replica-announce-ip {host}"))

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        shutil.rmtree(self._folder)
