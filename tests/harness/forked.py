"""Servers forked from a process that has imported all of `headrace serve`: imports are most of what a start takes.

What runs is what `python -m headrace serve` runs, from the reading of its arguments to its exit status. Where more than
the arguments and Headrace's own variables differs from what the tests were started with (other variables, limits,
namespaces, cores), the command itself is run.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from headrace.testing import process
from tests.harness.forking import ANSWER_BYTES, REQUEST_BYTES

_SERVE = [sys.executable, "-m", "headrace", "serve"]
_NAMESPACES = ("mnt", "net", "pid", "user", "uts")
_OF_NO_ACCOUNT = ("HEADRACE_", "PYTEST_CURRENT_TEST", "JAVA_HOME", "PYSPARK_", "SPARK_", "_RJEM_")
"""What these variables begin with, a server reads when it runs, if at all; Spark and Polars set the last ones."""


class Forked:
    """A process as `headrace.testing` asks for it, child of another one that reports its end."""

    def __init__(self, command: Sequence[str], pid: int, stdout: IO[bytes], ended: int) -> None:
        self.pid = pid
        self.stdout: IO[bytes] | None = stdout
        self._command = list(command)
        self._status: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        """See `headrace.testing.process.Process`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """See `headrace.testing.process.Process`."""
        if self._status is None:
            readable = select.poll()
            readable.register(self._ended, select.POLLIN)
            if not readable.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self._command, timeout or 0.0)
            told = os.read(self._ended, ANSWER_BYTES)
            os.close(self._ended)
            # Without a status the forked server is gone, with all its messages.
            self._status = os.waitstatus_to_exitcode(int(told)) if told else -signal.SIGKILL
        return self._status

    def terminate(self) -> None:
        """See `headrace.testing.process.Process`."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """See `headrace.testing.process.Process`."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class _Nursery:
    """The process that servers are forked from: started with the first of them, ended with this process."""

    def __init__(self, log: IO[bytes], environment: Mapping[str, str]) -> None:
        self._one_at_a_time = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.forking", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # a pipe and a file, as a server's are; nothing is written to them
                stderr=log,
                env=dict(environment),
                pass_fds=[theirs.fileno()],
            )

    def fork(self, command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]) -> Forked:
        request = json.dumps([command[len(_SERVE) - 1 :], dict(environment), str(Path.cwd())]).encode()
        (out, their_out), (ended, their_ended) = os.pipe(), os.pipe()
        try:
            with self._one_at_a_time:
                socket.send_fds(self._control, [request], [their_out, log.fileno(), their_ended])
                answer = self._control.recv(ANSWER_BYTES)
        finally:
            os.close(their_out)
            os.close(their_ended)
        assert answer, f"the process that servers are forked from ended with status {self._process.wait()}"
        return Forked(command, int(answer), os.fdopen(out, "rb", buffering=0), ended)


def _circumstances(environment: Mapping[str, str]) -> list[object]:
    """Return the inherited state of a process, other than its arguments and Headrace's variables."""
    variables = {name: value for name, value in environment.items() if not name.startswith(_OF_NO_ACCOUNT)}
    spaces = [Path("/proc/thread-self/ns", name).readlink() for name in _NAMESPACES]
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    return [variables, spaces, limits, os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)]


class _Launch:
    """See `headrace.testing.process.Launch`."""

    def __init__(self) -> None:
        self._usual = _circumstances(os.environ)
        self._nursery: _Nursery | None = None
        self._making = threading.Lock()

    def __call__(self, command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]) -> process.Process:
        if list(command[: len(_SERVE)]) != _SERVE or _circumstances(environment) != self._usual:
            return process.started(command, log, environment)
        with self._making:
            if self._nursery is None:
                self._nursery = _Nursery(log, environment)
        return self._nursery.fork(command, log, environment)


_launch = _Launch()


@contextlib.contextmanager
def forked_servers() -> Iterator[None]:
    """Fork servers that are started in this block, where that makes no difference."""
    process.launch = _launch
    try:
        yield
    finally:
        process.launch = process.started
