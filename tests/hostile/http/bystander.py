"""Watch a server from the outside: delays of other clients, and its memory."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.testing.process import Server

WORST_PING_MS = 100
"""Longest delay of a client by another's request (issue 10, "One request must not hurt the others")."""
MOST_MEMORY = 256 << 20
"""Bytes above what the server had before, which one request may take at most; also what its Valkey may."""
TRIES = 12
"""A busy or paused machine makes some attempts slow; a fault makes all of them slow."""


class Seen(msgspec.Struct, frozen=True):
    """What one try cost."""

    kafka_ms: float
    http_ms: float
    server_bytes: int
    storage_bytes: int

    @property
    def harmless(self) -> bool:
        """Return whether no other client was affected."""
        return (
            max(self.kafka_ms, self.http_ms) <= WORST_PING_MS
            and max(self.server_bytes, self.storage_bytes) <= MOST_MEMORY
        )

    def __str__(self) -> str:
        mib = f"{self.server_bytes >> 20} MiB in the server, {self.storage_bytes >> 20} MiB in its Valkey"
        return f"worst ping {self.kafka_ms:.0f} ms (Kafka), {self.http_ms:.0f} ms (HTTP); {mib}"


class Bystander:
    """A pinging client in a process of its own, and a look at the memory of a server."""

    def __init__(self, server: Server, *, http: bool = True) -> None:
        """Begin to ping `server`; `http` false: by the Kafka protocol alone, as a health check waits for Redis too."""
        self._server = server
        pids = (server.pid, server.storage_pid)
        arguments = [server.kafka, server.http.removeprefix("http://") if http else "", *map(str, pids)]
        self._pinging = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.http.pinging", *arguments],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._worst()

    def close(self) -> None:
        """Ping no more."""
        assert self._pinging.stdin is not None
        self._pinging.stdin.close()
        assert self._pinging.wait(60) == 0, "the pinging client was not answered"
        assert self._pinging.stdout is not None
        self._pinging.stdout.close()

    def harmless(self, attack: Callable[[], None]) -> Seen:
        """Run an attack, again where it looked harmful, and what it cost; AssertionError when it always does."""
        tries = []
        for _ in range(TRIES):
            seen = self.watch(attack)
            if seen.harmless:
                return seen
            tries.append(str(seen))
        raise AssertionError("\n".join(["it hurts others every time:", *tries]))

    def watch(self, attack: Callable[[], None]) -> Seen:
        """Run an attack, and what it cost."""
        pids = self._server.pid, self._server.storage_pid
        before = [_forget_peak(pid) for pid in pids]
        self._worst()
        attack()
        kafka_ms, http_ms = self._worst()
        server_bytes, storage_bytes = (
            max(0, _memory(pid, "VmHWM") - rss) for pid, rss in zip(pids, before, strict=True)
        )
        return Seen(kafka_ms, http_ms, server_bytes, storage_bytes)

    def _worst(self) -> tuple[float, float]:
        """The longest waits since the last call, in milliseconds."""
        assert self._pinging.stdin is not None
        assert self._pinging.stdout is not None
        self._pinging.stdin.write("\n")
        kafka_ms, http_ms = map(float, self._pinging.stdout.readline().split())
        return kafka_ms, http_ms


def _forget_peak(pid: int) -> int:
    """Make a process's peak of memory what it has now, and how much that is (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _memory(pid, "VmRSS")


def _memory(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, text = line.partition(":")
        if name == field:
            return int(text.split()[0]) * 1024
    raise AssertionError(f"no {field} of process {pid}")
