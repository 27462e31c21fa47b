import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hiredis
import pytest
import redis
from tests.harness.redis import RedisServer, debian_redis_program, valkey_program

from headrace.storage.redis.connection import Connection
from headrace.storage.redis.protocol import InPlace, Read, Reply, RespProtocol, encode
from headrace.topics.errors import StorageUnavailable

_BATCH = b"$200000\r\n" + b"x" * 200_000 + b"\r\n"
_PING = encode(["PING"])


class _Wire(asyncio.Transport):
    """What a link writes."""

    def __init__(self) -> None:
        super().__init__({"socket": None})
        self.written: list[bytes] = []
        self.aborted = False

    def writelines(self, chunks: Any) -> None:
        self.written += map(bytes, chunks)

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class _Owner:
    near = False
    preparing = False

    def prepare_flush(self) -> None:
        """There is nothing."""

    def scripts_lost(self, link: RespProtocol) -> None:
        raise AssertionError("no script is used here")

    def misplaced(self) -> None:
        raise AssertionError("there is no cluster")

    def link_lost(self, link: RespProtocol, reason: Exception | None) -> None:
        """The tests see it."""


class _Asking:
    """A link with its written commands and received replies."""

    def __init__(self) -> None:
        self.wire = _Wire()
        self.link = RespProtocol(_Owner())
        self.link.connection_made(self.wire)
        self.told: list[Reply] = []

    def ask(self, name: str, *, in_place: bool = False) -> None:
        def tell(reply: Reply) -> None:
            self.told.append((name, reply if isinstance(reply, int) else type(reply)))

        self.link.send([encode([name])], InPlace(tell) if in_place else tell)

    async def comes(self, data: bytes) -> None:
        while data:
            room = self.link.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            del room
            self.link.buffer_updated(count)
            data = data[count:]
        await asyncio.sleep(0)

    @property
    def pings(self) -> int:
        return self.wire.written.count(_PING)


@pytest.fixture
async def asking() -> _Asking:
    return _Asking()


async def test_a_single_answer_is_delivered_at_once(asking: _Asking) -> None:
    asking.ask("write")
    await asking.comes(b":1\r\n")
    assert asking.told == [("write", 1)]
    assert asking.pings == 0


async def test_an_answer_behind_a_large_one_waits_for_a_proof(asking: _Asking) -> None:
    asking.ask("read", in_place=True)
    asking.ask("write")
    await asking.comes(_BATCH + b":1\r\n")
    assert [name for name, _ in asking.told] == ["read"]
    assert asking.pings == 1
    await asking.comes(b"+PONG\r\n")
    assert asking.told[1:] == [("write", 1)]
    asking.ask("write")
    await asking.comes(b":2\r\n")
    assert asking.told[2:] == [("write", 2)]
    assert asking.pings == 1


async def test_readers_never_wait(asking: _Asking) -> None:
    told: list[Reply] = []
    for _ in range(2):
        asking.link.send([encode(["read"])], Read(told.append))
    await asking.comes(_BATCH + _BATCH)
    assert told == [_BATCH[9:-2]] * 2
    assert asking.pings == 0


async def test_a_latecomer_behind_waiters_keeps_the_order(asking: _Asking) -> None:
    asking.ask("read", in_place=True)
    asking.ask("first")
    await asking.comes(_BATCH + b":1\r\n")
    asking.ask("second")
    asking.ask("read", in_place=True)
    asking.ask("third")
    asking.ask("fourth")
    await asking.comes(b"+PONG\r\n:2\r\n" + _BATCH + b":3\r\n:4\r\n")
    assert [name for name, _ in asking.told] == ["read", "first", "read"]
    assert asking.pings == 2
    await asking.comes(b"+PONG\r\n")
    assert [name for name, _ in asking.told[3:]] == ["second", "third", "fourth"]


async def test_a_proof_that_is_early_itself_is_one_all_the_same(asking: _Asking) -> None:
    asking.ask("read", in_place=True)
    asking.ask("first")
    await asking.comes(_BATCH + b":1\r\n")
    asking.ask("read", in_place=True)
    asking.ask("second")
    asking.wire.written.clear()
    # The PING was sent before these two.
    await asking.comes(b"+PONG\r\n" + _BATCH + b":2\r\n")
    assert [name for name, _ in asking.told] == ["read", "first", "read"]
    assert asking.pings == 1
    await asking.comes(b"+PONG\r\n")
    assert [name for name, _ in asking.told[3:]] == ["second"]


async def test_what_a_file_that_cannot_be_written_may_lack_is_in_doubt(asking: _Asking) -> None:
    """A full disk; reads are served all the same."""
    asking.ask("read", in_place=True)
    asking.ask("write")
    await asking.comes(_BATCH + b":1\r\n")
    asking.ask("read", in_place=True)
    asking.ask("refused")
    await asking.comes(b"-MISCONF Errors writing to the AOF file: No space left on device\r\n" + _BATCH)
    assert asking.told[1] == ("write", StorageUnavailable)
    assert [name for name, _ in asking.told] == ["read", "write", "read"]
    await asking.comes(b"-MISCONF Errors writing to the AOF file: No space left on device\r\n")
    assert asking.told[3:] == [("refused", hiredis.ReplyError)]
    assert asking.pings == 1
    assert not asking.wire.aborted


async def test_other_refusals_of_the_ping_are_proofs(asking: _Asking) -> None:
    asking.ask("read", in_place=True)
    asking.ask("write")
    await asking.comes(_BATCH + b":1\r\n")
    await asking.comes(b"-NOPERM this user has no permissions to run the 'ping' command\r\n")
    assert asking.told[1:] == [("write", 1)]
    assert not asking.wire.aborted


async def test_a_loss_is_reported_in_order(asking: _Asking) -> None:
    asking.ask("read", in_place=True)
    asking.ask("write")
    await asking.comes(_BATCH + b":1\r\n")
    asking.ask("later")
    asking.link.connection_lost(None)
    assert [name for name, _ in asking.told] == ["read", "write", "later"]
    assert asking.told[1:] == [("write", StorageUnavailable), ("later", StorageUnavailable)]


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.apt)])
def kept(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server with an append-only file."""
    program: Callable[[], Path] = valkey_program if request.param == "valkey" else debian_redis_program
    options = {"appendonly": "yes", "appendfsync": "no", "enable-debug-command": "yes"}
    with RedisServer(program(), options) as server:
        yield server


async def test_records_acknowledged_after_a_large_response_survive_a_kill(kept: RedisServer) -> None:
    admin = redis.Redis.from_url(kept.url, socket_timeout=60)
    pool: Any = admin.connection_pool
    first, last = pool.get_connection(), pool.get_connection()
    admin.set("large", b"x" * 230_000)
    answers: list[Reply] = []
    told = asyncio.Event()
    connection = Connection(kept.url)
    await connection.open()

    def acknowledged(reply: Reply) -> None:
        answers.append(reply)
        told.set()

    connection.send([encode(["GET", "large"])], InPlace(answers.append))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # it is on its way, and nothing of its answer is read until the loop has another turn
    admin.ping()
    # Redis is busy while room becomes free and a write arrives; then it is busy again before it writes its file.
    first.send_command("DEBUG", "SLEEP", "0.1")
    connection.send([encode(["INCR", "number"])], acknowledged)
    await asyncio.sleep(0)
    last.send_command("DEBUG", "SLEEP", "0.3")
    async with asyncio.timeout(60):
        await told.wait()
    kept.send(signal.SIGKILL)
    kept.kill()
    kept.start()
    assert answers[1] == 1
    assert not isinstance(answers[0], hiredis.ReplyError)
    assert admin.get("number") == b"1"
    await connection.close()
    first.disconnect()
    last.disconnect()
    admin.close()
