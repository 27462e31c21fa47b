import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import redis.asyncio

from headrace.store.process import valkeys_in
from headrace.testing.valkey import valkey


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """One Valkey for all tests that bring nothing down."""
    with valkey() as url:
        yield url


@pytest.fixture
async def client(valkey_url: str) -> "AsyncIterator[redis.asyncio.Redis]":
    """A client of it, with every key gone."""
    async with redis.asyncio.from_url(valkey_url) as link:
        await link.flushall()
        yield link


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary directory whose path leaves room for a socket; whatever Valkey is left in it is killed."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as name:
        folder = Path(name).resolve()
        yield folder
        for place in (folder, *folder.glob("**/")):
            for pid in valkeys_in(place):
                os.kill(pid, signal.SIGKILL)


_SERVER = """
import asyncio, sys
from pathlib import Path
from headrace.store import embedded
{before}
async def main():
    valkey = embedded.EmbeddedValkey(Path(sys.argv[1]), maxmemory=1 << 30)
    await valkey.start(lambda part: print(valkey.pid, flush=True))
    print(valkey.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
def orphan() -> Callable[..., int]:
    """Start a server's Valkey in another process, kill that process, answer the pid of the Valkey that is left."""

    def leave(data: Path, before: str = "") -> int:
        command = [sys.executable, "-c", _SERVER.format(before=before), os.fspath(data)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            pid = int(server.stdout.readline())
            server.kill()
        return pid

    return leave
