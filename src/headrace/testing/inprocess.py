"""A real server in a thread of the test's process, with a movable clock.

with InProcessServer(num_partitions=3) as s:
    producer = Producer({"bootstrap.servers": s.kafka})
    s.clock.advance(seconds=31)
"""

import asyncio
import contextlib
import logging
import subprocess
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

import redis
import structlog

from headrace.server import config
from headrace.server.app import Ready, serve
from headrace.server.process import Stop, loop_factory
from headrace.testing.clock import MovableClock
from headrace.testing.process import TESTING, ServerFailed, hold_port, texts_of

_STOP_S = 60
_ANY_PORT = "127.0.0.1:0"


class InProcessServer:
    """`headrace serve` in a thread with its own event loop. Use clients in other threads."""

    def __init__(
        self,
        data: Path | None = None,
        *,
        redis: str | None = None,
        clock: MovableClock | None = None,
        https: bool = False,
        bootstrap_user: Path | None = None,
        **given: object,
    ) -> None:
        """Prepare the server without starting it.

        Args:
            data: data directory, kept afterwards; None: a temporary directory, removed by `close`.
            redis: URL of an external Redis; None: the embedded Valkey.
            clock: clock of the server; None: a new one.
            https: serve HTTPS; requires `ssl_keystore_location`.
            bootstrap_user: file with NAME:PASSWORD of the first user.
            given: broker settings (Kafka's names) or OCI settings, with underscores for dots: `num_partitions=3`.

        Raises:
            TypeError: unknown setting.
            headrace.server.config.SettingsError: invalid value.
        """
        self.clock = clock or MovableClock()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._guard: Guard | None = None
        self._data = data
        self._redis = redis
        self._sets = texts_of({**TESTING, **given})
        self._first_user = None if bootstrap_user is None else str(bootstrap_user)
        self._http_scheme = "https://" if https else ""
        self._load(_ANY_PORT, self._http_scheme + _ANY_PORT)
        self._ready: Ready | None = None
        self._ports: list[int] = []
        self._held = contextlib.ExitStack()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = Stop()
        self._status = 0

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
        """URL of the HTTP APIs, including the OCI API."""
        return self._known.http

    @property
    def schema_registry(self) -> str:
        """URL of the schema registry, for `schema.registry.url`; requires `schema_registry_enable=True`."""
        return f"{self.http}/registry"

    @property
    def storage(self) -> str:
        """URL of the storage for redis-py's `from_url`."""
        return self._known.storage

    @property
    def data(self) -> Path:
        """Data directory."""
        if self._data is None:
            raise ServerFailed("the server has not been started")
        return self._data

    @property
    def running(self) -> bool:
        """Whether the server is running."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def _known(self) -> Ready:
        if self._ready is None:
            raise ServerFailed("the server has not been started")
        return self._ready

    def start(self) -> None:
        """Start, and wait until every API answers. Later starts use the same ports, reserved until `close`.

        Raises:
            ServerFailed: it is already running.
            headrace.server.config.StartError: the start failed; the message has the cause.
        """
        if self.running:
            raise ServerFailed("the server is running already")
        log_to_logging()
        if self._ready is None:
            self._ports = [hold_port(self, self._held) for _ in range(2)]
        if self._data is None:
            # pytest's tmp_path is too long for the Valkey's socket.
            self._temporary = tempfile.TemporaryDirectory(prefix="headrace-")
            self._data = Path(self._temporary.name) / "data"
        started: Future[Ready] = Future()
        self._stop = Stop()
        # A daemon thread does not block the exit of an aborted test run.
        self._thread = threading.Thread(target=self._run, args=(started,), name="headrace", daemon=True)
        self._thread.start()
        try:
            self._ready = started.result()
        except BaseException:
            self._thread.join(_STOP_S)
            self._thread = None
            if self._ready is None:
                # The caller does not close it then.
                self.close()
            raise
        if self._temporary is not None and self._redis is None:
            self._guard = Guard(self.storage, self.data, Path(self._temporary.name))

    def stop(self) -> None:
        """Stop the server if it runs. Raises ServerFailed if it does not end, or lost its storage."""
        if self._thread is None:
            return
        if self._guard is not None:
            self._guard.release()
            self._guard = None
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.ask, "stopped by the test")
        self._thread.join(_STOP_S)
        if self._thread.is_alive():
            raise ServerFailed(f"the server did not stop within {_STOP_S} s")
        self._thread = None
        if self._status != 0:
            raise ServerFailed(f"the server ended with status {self._status}: {self._stop.reason}")

    def restart(self) -> None:
        """Stop, and start again with the same data, ports and clock."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove a temporary data directory. Raises as `stop`."""
        try:
            self.stop()
        finally:
            self._held.close()
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = self._data = None

    def __enter__(self) -> Self:
        if not self.running:
            self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _load(self, kafka: str, http: str) -> tuple[config.ServerOptions, config.BrokerSettings, config.OciSettings]:
        data = None if self._data is None else str(self._data)
        # The settings may define listeners.
        told = None if any(each.startswith("listeners=") for each in self._sets) else kafka
        flags = {"data": data, "redis": self._redis, "kafka": told, "http": http, "bootstrap-user": self._first_user}
        return config.load(flags, self._sets, environ={})

    def _run(self, started: "Future[Ready]") -> None:
        kafka, http = (f"127.0.0.1:{port}" for port in self._ports)

        async def run() -> int:
            self._loop = asyncio.get_running_loop()
            self.clock.bind(self._loop)
            options, broker, oci = self._load(kafka, self._http_scheme + http)
            return await serve(options, broker, oci, started.set_result, clock=self.clock, guest=self._stop)

        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                self._status = runner.run(run())
        except BaseException as error:
            if started.done():
                self._status = 1
                self._stop.ask(f"{type(error).__name__}: {error}")
                raise
            started.set_exception(error)
        finally:
            self.clock.bind(None)
            self._loop = None


def log_to_logging() -> None:
    """Send the server's log to `logging`, unless this process has configured structlog."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    logging.getLogger("headrace").setLevel(logging.INFO)


# `read` returns when this process ends. The directory proves that the pid is still the Valkey's.
_SCRIPT = 'read -r _; [ "$(readlink "/proc/$1/cwd")" = "$2" ] && kill -KILL "$1"; rm -rf "$3"'


class Guard:
    """A shell that kills the Valkey when this process dies."""

    def __init__(self, storage: str, data: Path, remove: Path) -> None:
        """`storage` is the URL of a Valkey that works in `data`; `remove` is deleted afterwards."""
        with redis.Redis.from_url(storage) as link:
            pid = int(link.info("server")["process_id"])
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "headrace-guard", str(pid), str(data.resolve()), str(remove)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must reach only the tests
        )

    def release(self) -> None:
        """End the guard without touching the Valkey."""
        self._shell.kill()
        self._shell.wait()
        if self._shell.stdin is not None:
            self._shell.stdin.close()
