"""An embedded Valkey without a server, for tests of whatever speaks to the storage itself."""

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path

from headrace.storage.valkey.server import EmbeddedValkey


@contextlib.asynccontextmanager
async def running_valkey(data: Path | None = None) -> AsyncIterator[EmbeddedValkey]:
    """A Valkey that answers, stopped at the end; `data` None: on a temporary directory, removed afterwards."""
    with _directory(data) as directory:
        embedded = EmbeddedValkey(directory)
        await embedded.start()
        try:
            yield embedded
        finally:
            await embedded.stop()


@contextlib.contextmanager
def valkey(data: Path | None = None) -> Iterator[str]:
    """The URL of a Valkey, for tests without an event loop and for fixtures that outlive one."""
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        stop = asyncio.Event()
        try:
            async with running_valkey(data) as embedded:
                started.set_result((embedded.url, asyncio.get_running_loop(), stop))
                await stop.wait()
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=asyncio.run, args=(run(),), name="embedded Valkey")
    thread.start()
    try:
        url, loop, stop = started.result()
    except BaseException:
        thread.join()
        raise
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@contextlib.contextmanager
def _directory(data: Path | None) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        yield Path(folder)
