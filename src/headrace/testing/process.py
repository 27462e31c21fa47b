"""A real server as a subprocess that tests can start, stop, kill and restart on the same data.

with server(num_partitions=3) as s:
    producer = Producer({"bootstrap.servers": s.kafka})
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headrace.broker.config.keys import BROKER_KEYS
from headrace.broker.config.settings import LISTENER_PREFIX
from headrace.oci.settings import OCI_KEYS

_READY_S = 60
_STOP_S = 60
_LOGGED_S = 60
_LOOK_S = 0.005
_LOG_TAIL = 4_000


class ServerFailed(Exception):
    """The server failed to start or stop; the message has the end of its log."""


class Addresses(msgspec.Struct, frozen=True):
    """Addresses in the ready line."""

    kafka: str
    http: str
    storage: str
    listeners: dict[str, str] = {}
    """HOST:PORT of the Kafka listeners after the first, by name."""

    @classmethod
    def parse(cls, line: str) -> "Addresses":
        """Parse `ready kafka=HOST:PORT http=URL storage=URL`, and `listener.NAME=HOST:PORT`. Raises ValueError."""
        word, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs)
        known = {name: values.pop(name, None) for name in ("kafka", "http", "storage")}
        if word != "ready" or None in known.values():
            raise ValueError(f"not a ready line: {line!r}")
        more = {name.removeprefix("listener."): at for name, at in values.items() if name.startswith("listener.")}
        return msgspec.convert({**known, "listeners": more}, cls)


class Process(Protocol):
    """Methods of `subprocess.Popen` that a server needs."""

    pid: int
    stdout: IO[bytes] | None

    def poll(self) -> int | None:
        """Return the status; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the status. Raises subprocess.TimeoutExpired."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""


class Launch(Protocol):
    """Starts a process."""

    def __call__(self, command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]) -> Process:
        """Start without input, with stdout in a pipe, and stderr in the log."""


def started(command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """See `Launch`."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment)


TESTING: Mapping[str, object] = {"oci_faults_header": True}
"""Default settings of servers in tests."""
launch: Launch = started
"""Starts every server; replace it with a faster one for many servers."""


class Server:
    """`python -m headrace serve` as a subprocess. Stopping it keeps its data."""

    def __init__(self, data: Path, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        """Prepare the server without starting it.

        Args:
            data: data directory; the log is `<data>.log`.
            arguments: further arguments of `serve`.
            environment: additional variables; HEADRACE_* of this process are removed.
        """
        self.data = data
        self.log_file = data.with_name(data.name + ".log")
        self.arguments = list(arguments)
        """Arguments of `serve`; changes apply to the next start."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self._environment = inherited | dict(environment or {})
        self._process: Process | None = None
        self._addresses: Addresses | None = None
        self._orphaned = False
        self._ports: list[int] = []
        self._held = contextlib.ExitStack()

    @property
    def kafka(self) -> str:
        """HOST:PORT of the Kafka listener."""
        return self._known.kafka

    @property
    def listeners(self) -> dict[str, str]:
        """HOST:PORT of the Kafka listeners after the first, by name."""
        return self._known.listeners

    @property
    def http(self) -> str:
        """URL of the HTTP APIs."""
        return self._known.http

    @property
    def schema_registry(self) -> str:
        """URL of the schema registry, for `schema.registry.url`; requires `schema_registry_enable=True`."""
        return f"{self.http}/registry"

    @property
    def storage(self) -> str:
        """URL of the storage for redis-py's `from_url`, without a password."""
        return self._known.storage

    @property
    def pid(self) -> int:
        """Process id of the server, not of its Valkey."""
        if self._process is None:
            raise ServerFailed("the server is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def _known(self) -> Addresses:
        if self._addresses is None:
            raise ServerFailed("the server has not been started")
        return self._addresses

    def log(self) -> str:
        """The server's stderr of all starts."""
        return self.log_file.read_text("utf-8", "replace") if self.log_file.exists() else ""

    def logged(self, text: str, start: int = 0) -> str:
        """Wait until `text` appears in the log after the first `start` characters, and return the log from there.

        The server logs asynchronously, and repeated lines up to ten seconds later. Raises ServerFailed if the text does
        not appear.
        """
        deadline = time.monotonic() + _LOGGED_S
        while text not in (log := self.log()[start:]):
            if time.monotonic() > deadline:
                raise ServerFailed(self._explain(f"did not log {text!r}"))
            time.sleep(_LOOK_S)
        return log

    def start(self) -> None:
        """Start, and wait for the ready line. Later starts use the same ports. Raises ServerFailed."""
        if self.running:
            raise ServerFailed("the server is running already")
        if self._process is not None:  # it has exited
            self._forget()
        if not self._ports and not any(each.startswith("--brokers") for each in self.arguments):
            self._ports = [hold_port(self, self._held) for _ in range(2)]
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._process = launch(self.command(), log, self._environment)
        try:
            self._addresses = Addresses.parse(self._first_line())
        except BaseException:
            self.kill()
            raise
        self._orphaned = False

    def command(self) -> list[str]:
        """The command line of the next start."""
        kafka, http = (f"127.0.0.1:{port}" for port in self._ports or (0, 0))
        if self._addresses is not None:
            # The other brokers use the next ports.
            kafka, http = (each.partition(",")[0] for each in (self._addresses.kafka, self._addresses.http))
            http = http.removeprefix("http://")
        place = ["--http", http, "--data", str(self.data)]
        if not any(each.startswith("listeners=") for each in self.arguments):
            place += ["--kafka", kafka]
        return [sys.executable, "-m", "headrace", "serve", *place, *self.arguments]

    def stop(self) -> None:
        """Send SIGTERM and wait, if it runs. Raises ServerFailed if the status is not 0."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            status = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(self._explain(f"did not stop within {_STOP_S} s of SIGTERM")) from None
        self._forget()
        if status != 0:
            raise ServerFailed(self._explain(f"ended with status {status}"))

    def kill(self) -> None:
        """Send SIGKILL to the server only: its Valkey becomes an orphan."""
        if self._process is not None:
            self._process.kill()
            self._forget()
            self._orphaned = self._owns_storage

    @property
    def storage_pid(self) -> int:
        """Return the process id of the storage. Raises redis.RedisError."""
        with redis.Redis.from_url(self.storage, password=_password(self.data)) as link:
            return int(link.info("server")["process_id"])

    def kill_storage(self) -> None:
        """Send SIGKILL to the embedded Valkey."""
        os.kill(self.storage_pid, signal.SIGKILL)

    def wait(self, limit_s: float = _STOP_S) -> int:
        """Wait until the server ends, and return its status. Raises ServerFailed after `limit_s`."""
        if self._process is None:
            raise ServerFailed("the server is not running")
        try:
            status = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise ServerFailed(self._explain(f"still runs after {limit_s:g} s")) from None
        self._forget()
        return status

    def restart(self) -> None:
        """Stop, and start again with the same data and ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the server and a Valkey orphaned by `kill`. Raises as `stop`."""
        try:
            self.stop()
        finally:
            self._held.close()
            if self._orphaned and self._addresses is not None:
                _end_storage(self._addresses.storage, self.data)

    def __enter__(self) -> Self:
        if not self.running:
            self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def _owns_storage(self) -> bool:
        return "--redis" not in self.arguments and "HEADRACE_REDIS" not in self._environment

    def _first_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        written = select.poll()  # select() supports no descriptor above 1023
        written.register(descriptor, select.POLLIN)
        received = bytearray()
        deadline = time.monotonic() + _READY_S
        while b"\n" not in received:
            if not written.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise ServerFailed(self._explain(f"was not ready after {_READY_S} s"))
            chunk = os.read(descriptor, 4096)
            if not chunk:
                raise ServerFailed(self._explain(f"ended with status {self._process.wait()} before it was ready"))
            received += chunk
        return received.decode()

    def _forget(self) -> None:
        assert self._process is not None
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def _explain(self, what: str) -> str:
        return f"the server {what}; the end of its log:\n{self.log()[-_LOG_TAIL:]}"


def hold_port(holder: object, held: contextlib.ExitStack) -> int:
    """Reserve a port of 127.0.0.1 until `held` is closed or `holder` is garbage, even while the server is down.

    With SO_REUSEADDR on Linux, two sockets can bind a port as long as only the server's listens.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        held.callback(weakref.finalize(holder, os.close, bound.detach()))
    return port


def _password(data: Path) -> str | None:
    file = data / "storage.password"
    return file.read_text("ascii").strip() if file.exists() else None


def _end_storage(url: str, data: Path) -> None:
    without_retries = Retry(NoBackoff(), 0)
    with (
        contextlib.suppress(redis.RedisError),
        redis.Redis.from_url(url, password=_password(data), socket_timeout=30, retry=without_retries) as link,
    ):
        link.shutdown(nosave=True)


@contextlib.contextmanager
def server(
    *,
    data: Path | None = None,
    redis: str | None = None,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    **settings: object,
) -> Iterator[Server]:
    """Run a server on free ports; it must stop with status 0 at the end.

    Args:
        data: data directory, kept afterwards; None: a temporary one.
        redis: URL of an external Redis; None: the embedded Valkey.
        arguments: further arguments of `serve`.
        environment: additional variables.
        settings: broker or OCI settings, with underscores for dots: `num_partitions=3`.

    Raises:
        ServerFailed: it did not start, or did not stop cleanly.
        TypeError: unknown setting.
    """
    given = [*arguments, *(argument for text in texts_of({**TESTING, **settings}) for argument in ("--set", text))]
    if redis is not None:
        given += ["--redis", redis]
    with contextlib.ExitStack() as stack:
        if data is None:
            # pytest's tmp_path is too long for the Valkey's socket.
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-"))) / "data"
        yield stack.enter_context(Server(data, given, environment))


def texts_of(settings: Mapping[str, object]) -> list[str]:
    """Return settings as `KEY=VALUE`, from field names or those of one listener. Raises TypeError."""
    names = {key.field: key.name for key in (*BROKER_KEYS, *OCI_KEYS)}
    texts = []
    for field, value in settings.items():
        if field not in names and not field.startswith(LISTENER_PREFIX):
            raise TypeError(f"server() got {field!r}, which is neither an argument nor a setting")
        texts.append(f"{names.get(field, field)}={str(value).lower() if isinstance(value, bool) else value}")
    return texts
