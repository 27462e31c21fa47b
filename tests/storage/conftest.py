import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hiredis
import pytest
import redis.asyncio
from tests.conftest import OpenStorage
from tests.harness.owning import Owner
from tests.harness.plain import STREAM
from tests.harness.redis import RedisServer
from tests.harness.valkey import valkey
from tests.storage.written import Written

from headrace.broker.partition import recovery
from headrace.storage.journal.journal import SMALLEST, Journal
from headrace.storage.redis.connection import Connection
from headrace.storage.redis.protocol import encode
from headrace.storage.storage import RedisStorage
from headrace.storage.valkey.process import valkeys_in
from headrace.topics.errors import StorageUnavailable


class Wire:
    """A connection that keeps what is sent: the commands of each message, and the waiting callers."""

    def __init__(self) -> None:
        self.made = 1
        self.near = False
        self.sent: list[tuple[list[list[bytes]], Sequence[Callable[[Any], None]]]] = []
        self.preparing: list[Callable[[], None]] = []

    def at(self, _key: str) -> "Wire":
        """It represents the only server."""
        return self

    def before_flush(self, prepare: Callable[[], None]) -> None:
        if prepare not in self.preparing:
            self.preparing.append(prepare)

    def turn(self) -> None:
        """The end of a turn of the loop."""
        preparing, self.preparing = self.preparing, []
        for prepare in preparing:
            prepare()

    def send(self, chunks: Sequence[bytes], callback: Callable[[Any], None]) -> None:
        self.send_several(chunks, [callback])

    def send_several(self, chunks: Sequence[bytes], callbacks: Sequence[Callable[[Any], None]]) -> None:
        reader = hiredis.Reader(notEnoughData=None)
        reader.feed(b"".join(bytes(chunk) for chunk in chunks))
        commands = []
        while (command := reader.gets()) is not None:
            commands.append(command)
        assert len(commands) == len(callbacks)
        self.sent.append((commands, callbacks))

    async def call(self, *arguments: str | bytes | int, reads: bool = False) -> Any:
        """Raises an answer that is StorageUnavailable, as the real one does."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send([encode(arguments)], lambda reply: None if answer.done() else answer.set_result(reply))
        reply = await answer
        if isinstance(reply, StorageUnavailable):
            raise reply
        return reply

    def next(self) -> list[list[bytes]]:
        """The commands of the message that waits longest."""
        return self.sent[0][0]

    def names(self) -> list[list[bytes]]:
        """The commands of each message that waits, by name."""
        return [[command[0] for command in commands] for commands, _ in self.sent]

    def answer(self, *replies: Any) -> None:
        """Answer the message that waits longest."""
        _, callbacks = self.sent.pop(0)
        for callback, reply in zip(callbacks, replies, strict=True):
            callback(reply)

    def execute(self, *replies: Any) -> None:
        """Answer it as Redis does a transaction."""
        commands, _ = self.sent[0]
        self.answer(b"OK", *[b"QUEUED"] * (len(commands) - 2), list(replies))


@pytest.fixture
def wire() -> Wire:
    return Wire()


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
from headrace.storage.valkey import server
{before}
async def main():
    valkey = server.EmbeddedValkey(Path(sys.argv[1]), maxmemory=1 << 30)
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
            # The log comes the same way.
            pid = next(int(line) for line in server.stdout if line.strip().isdigit())
            server.kill()
        return pid

    return leave


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@contextlib.asynccontextmanager
async def connected(url: str, *prepare: bytes) -> AsyncIterator[Connection]:
    connection = Connection(url, prepare)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


Start = Callable[..., Awaitable[Owner]]
"""Starts an owner by a view (1), of a Redis (any_redis), with a journal (None)."""


@pytest.fixture
async def start(link: Any, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Owners of one log in an initially empty Redis; they recover it without a pause."""
    monkeypatch.setattr(recovery, "_RETRY_MS", 1)
    owners: list[Owner] = []

    async def make(view: int = 1, url: str = any_redis.url, journal: Path | None = None) -> Owner:
        owners.append(await Owner.start(url, view, journal))
        return owners[-1]

    yield make
    for owner in owners:
        await owner.crash()


@pytest.fixture
def link(any_redis: RedisServer) -> Iterator[Any]:
    """A Redis program next to Headrace, on an empty Redis."""
    with redis.Redis.from_url(any_redis.url) as found:
        found.flushall()
        yield found
        found.config_set("maxmemory", 0)


@pytest.fixture
async def storage(open_storage: OpenStorage) -> RedisStorage:
    """A storage with one open native partition, `STREAM`."""
    opened = await open_storage()
    await opened.native.open(STREAM)
    return opened


@pytest.fixture
async def connection(any_redis: RedisServer) -> AsyncIterator[Connection]:
    async with connected(any_redis.url) as made:
        yield made


@pytest.fixture
def journal_path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def journal(journal_path: Path) -> Iterator[Journal]:
    """An empty one of the smallest size, ready to be written."""
    opened = Journal.open(journal_path, SMALLEST).renewed(SMALLEST)
    yield opened
    opened.close()


@pytest.fixture
async def written(tmp_path: Path) -> AsyncIterator[Written]:
    made = Written(tmp_path)
    yield made
    await made.file.close()
