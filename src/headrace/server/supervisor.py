"""Run several brokers over one embedded Valkey (`--brokers N`).

This process owns the Valkey and the lock of the data directory, and restarts brokers that die. The brokers work as over
an external Redis, without a journal.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog

from headrace.aio.tasks import end
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.partition.cache import default_bytes
from headrace.metrics.counters import StoreCounters
from headrace.oci.settings import OciSettings
from headrace.security.access.listeners import Listener
from headrace.server.app import Ready
from headrace.server.config import ServerOptions, SettingsError, StartError
from headrace.server.process import Stop
from headrace.server.storage import embedded_valkey, over_valkey, show_valkey_loading
from headrace.storage.brokers import forget_view
from headrace.storage.errors import StoreError
from headrace.storage.layout.keys import Keyspace
from headrace.storage.redis import clients
from headrace.storage.valkey.server import machine_memory
from headrace.text.addresses import Address

_STOP_S = 15.0
"""Timeout of a broker's orderly shutdown."""
_AGAIN_S = 1.0
"""Delay before a broker is restarted."""
_MOST_ENDS = 5
"""Consecutive failed starts of a broker after which the server gives up."""
_log = structlog.get_logger("headrace.server")


class Task(msgspec.Struct, frozen=True):
    """A broker process's configuration, a line of JSON on its standard input."""

    options: ServerOptions
    settings: dict[str, str]
    """Settings of the broker that differ from the default, by Kafka's names."""
    oci: OciSettings


class StatusReport(msgspec.Struct, frozen=True):
    """A broker process's response, a line of JSON: its addresses, or the error."""

    ready: Ready | None = None
    error: str = ""
    mistake: bool = False
    """Whether the error is one of configuration, which a restart does not fix."""


def encode(message: Task | StatusReport) -> bytes:
    """Return a line of JSON."""
    return msgspec.json.encode(message, enc_hook=os.fspath) + b"\n"


def _plain(kind: type[Any], value: Any) -> Any:
    return Path(value) if issubclass(kind, Path) else kind(value)


def decode_task(line: bytes) -> Task:
    """Parse the output of `encode`."""
    return msgspec.json.decode(line, type=Task, dec_hook=_plain)


class _Broker:
    def __init__(self, task: Task, stop: Stop) -> None:
        self.node_id = int(task.settings["node.id"])
        self._task = task
        self._stop = stop
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> Ready:
        """Wait until the process is ready. Raises StartError."""
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headrace.cli.commands.broker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):
            # Kept open: its end stops the broker when this process dies.
            process.stdin.write(encode(self._task))
            await process.stdin.drain()
        line = await process.stdout.readline()
        told = (
            msgspec.json.decode(line, type=StatusReport) if line else StatusReport(error="it ended before it was ready")
        )
        if told.ready is None:
            await process.wait()
            raise SettingsError(told.error) if told.mistake else StartError(told.error)
        return told.ready

    def keep(self, ready: Ready) -> None:
        """Restart the broker on the same ports when it ends."""
        self._task = msgspec.structs.replace(self._task, options=_at(self._task.options, ready))
        self._watching = asyncio.create_task(self._keep(), name=f"broker {self.node_id}")

    async def _keep(self) -> None:
        ends = 0
        while True:
            assert self._process is not None
            status = await self._process.wait()
            _log.error("a broker process exited and is restarted", node=self.node_id, status=status)
            while True:
                await asyncio.sleep(_AGAIN_S)
                try:
                    await self.start()
                except StartError as error:
                    ends += 1
                    _log.error("a broker process cannot be restarted", node=self.node_id, reason=str(error))
                    if ends >= _MOST_ENDS:
                        self._stop.ask(f"broker {self.node_id} cannot be started: {error}", status=1)
                        return
                else:
                    ends = 0
                    break

    async def end(self) -> int:
        if self._watching is not None:
            await end(self._watching)
        process = self._process
        if process is None or process.returncode is not None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                status = await process.wait()
            # It was not ready, and needs no orderly shutdown.
            return 0 if self._watching is None else status
        except TimeoutError:
            _log.error("a broker process does not stop and is killed", node=self.node_id)
            process.kill()
            await process.wait()
            return 1


async def serve(
    options: ServerOptions, settings: BrokerSettings, oci: OciSettings, on_ready: Callable[[Ready], None]
) -> int:
    """Run the configured number of brokers until SIGTERM or SIGINT; see `app.serve`."""
    stop = Stop()
    with stop.on_signals():
        async with contextlib.AsyncExitStack() as stack:
            url = await _valkey(options, settings, stop, stack)
            brokers = [_Broker(each, stop) for each in tasks(url, options, settings, oci)]
            stack.push_async_callback(_end_all, brokers, stop)
            starting = asyncio.gather(*(each.start() for each in brokers))
            asked = asyncio.ensure_future(stop.wait())
            waiting: list[asyncio.Future[Any]] = [starting, asked]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                asked.cancel()
                found = starting.result()
                for broker, ready in zip(brokers, found, strict=True):
                    broker.keep(ready)
                on_ready(_together(url, found))
                await stop.wait()
            else:
                starting.cancel()
            _log.info("stopping", reason=stop.reason)
    return stop.status


async def _end_all(brokers: list[_Broker], stop: Stop) -> None:
    statuses = await asyncio.gather(*(each.end() for each in brokers))
    for broker, status in zip(brokers, statuses, strict=True):
        if status:
            _log.error("a broker process did not stop cleanly", node=broker.node_id, status=status)
            stop.status = stop.status or 1


async def _valkey(
    options: ServerOptions, settings: BrokerSettings, stop: Stop, stack: contextlib.AsyncExitStack
) -> str:
    valkey = embedded_valkey(options, settings, stop)
    try:
        url = await valkey.start(show_valkey_loading)
        stack.push_async_callback(valkey.stop)
        async with contextlib.AsyncExitStack() as opening:
            without = BrokerSettings.of(settings.given | {"headrace.journal.bytes": "0"})
            storage = await over_valkey(url, options, without, opening, StoreCounters())
            await storage.close()
        # Its members have lost this data directory; they end when the cluster membership disappears.
        async with clients.asynchronous(url) as client:
            await forget_view(client, Keyspace().view)
    except StoreError as error:
        raise StartError(str(error)) from None
    return url


def tasks(url: str, options: ServerOptions, settings: BrokerSettings, oci: OciSettings) -> list[Task]:
    """Return each broker's configuration: they differ in `node.id` and consecutive ports."""
    count = options.brokers
    own = {name: text for name, text in settings.given.items() if name != "broker.id"}
    # The embedded Valkey holds no other application's data.
    own.setdefault("headrace.adopt.prefixes", "*")
    if settings.headrace_cache_bytes < 0:
        own["headrace.cache.bytes"] = str(default_bytes(machine_memory()) // count)
    shared = msgspec.structs.replace(options, redis=url, disk=options.data, brokers=1)
    return [
        Task(_moved(shared, place), own | {"node.id": str(settings.node_id + place)}, oci) for place in range(count)
    ]


def _moved(options: ServerOptions, by: int) -> ServerOptions:
    def moved(address: Address | None) -> Address | None:
        return None if address is None else Address(address.host, address.port and address.port + by)

    def listener(each: Listener) -> Listener:
        return msgspec.structs.replace(each, address=moved(each.address), advertised=moved(each.advertised))

    return msgspec.structs.replace(
        options,
        kafka=moved(options.kafka),
        http=moved(options.http),
        advertise=moved(options.advertise),
        listeners=tuple(map(listener, options.listeners)),
    )


def _at(options: ServerOptions, ready: Ready) -> ServerOptions:
    addresses = [Address.parse(text) for text in (ready.kafka, *ready.listeners.values())]
    listeners = tuple(
        msgspec.structs.replace(each, address=Address(each.address.host, at.port))
        for each, at in zip(options.listeners, addresses, strict=True)
    )
    http = Address(options.http.host, Address.parse(ready.http.partition("://")[2]).port)
    return msgspec.structs.replace(options, kafka=listeners[0].address, http=http, listeners=listeners)


def _together(url: str, found: list[Ready]) -> Ready:
    joined = partial(map, ",".join)
    kafka, http = joined(zip(*((each.kafka, each.http) for each in found), strict=True))
    names = found[0].listeners
    listeners = {name: ",".join(each.listeners[name] for each in found) for name in names}
    return Ready(kafka, http, url, listeners)
