import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import hiredis
import pytest
import redis
import structlog
from tests.harness.ports import free_ports
from tests.harness.redis import RedisServer

from headrace.store import finding, target
from headrace.store.connection import Connection
from headrace.store.copies import Copies
from headrace.store.errors import Unreachable
from headrace.store.finding import Place
from headrace.store.link import Link, Reply, encode
from headrace.store.native_watch import StreamWatcher
from headrace.store.scripts import load_commands
from headrace.topics.errors import NotEnoughReplicasAfterAppend, StorageUnavailable

_ECHO = "return ARGV[1]"
_ECHO_SHA = "098e0f0d1448c0a81dafe820f66d460eb09263da"


@contextlib.asynccontextmanager
async def connected(url: str, *prepare: bytes) -> AsyncIterator[Connection]:
    connection = Connection(url, prepare)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def connection(any_redis: RedisServer) -> AsyncIterator[Connection]:
    async with connected(any_redis.url) as made:
        yield made


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until something holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_call_is_answered(connection: Connection) -> None:
    assert (
        await connection.call(
            "ECHO",
            "grüß",
        )
        == "grüß".encode()
    )
    assert await connection.call("ECHO", 12) == b"12"
    assert await connection.call("ECHO", b"\r\n\x00") == b"\r\n\x00"


async def test_an_error_of_redis_is_an_answer(connection: Connection) -> None:
    assert isinstance(await connection.call("NONSENSE"), hiredis.ReplyError)
    assert await connection.call("PING") == b"PONG"


async def test_answers_come_in_the_order_of_the_requests(connection: Connection) -> None:
    answers: list[Reply] = []
    for number in range(1_000):
        connection.send([encode(["ECHO", number])], answers.append)
    await connection.call("PING")
    assert answers == [b"%d" % number for number in range(1_000)]


async def test_a_command_may_come_in_pieces(connection: Connection) -> None:
    payload = bytearray(range(256)) * 400
    answers: list[Reply] = []
    head = b"*2\r\n$4\r\nECHO\r\n$%d\r\n" % len(payload)
    connection.send([head, memoryview(payload), b"\r\n"], answers.append)
    await connection.call("PING")
    assert answers == [bytes(payload)]


async def test_a_large_answer_comes_whole(connection: Connection) -> None:
    piece = b"0123456789abcdef" * (1 << 18)
    await connection.call("DEL", "large")
    for _ in range(8):
        await connection.call("RPUSH", "large", piece)
    small = connection.call("ECHO", "after")
    assert await connection.call("LRANGE", "large", 0, -1) == [piece] * 8
    assert await small == b"after"
    await connection.call("DEL", "large")


async def test_one_failing_callback_takes_no_other_answer_away(connection: Connection) -> None:
    def fail(_: Reply) -> None:
        raise RuntimeError("mine")

    answers: list[Reply] = []
    with structlog.testing.capture_logs() as lines:
        connection.send([encode(["PING"])], fail)
        connection.send([encode(["ECHO", "mine"])], answers.append)
        await connection.call("PING")
    assert answers == [b"mine"]
    assert [line["event"] for line in lines] == ["an answer of Redis could not be handled"]


async def test_a_call_given_up_keeps_its_place_in_the_order(connection: Connection) -> None:
    async with asyncio.TaskGroup() as tasks:
        slow = tasks.create_task(connection.call("ECHO", "given up"))
        await asyncio.sleep(0)
        slow.cancel()
        assert await connection.call("ECHO", "next") == b"next"


async def test_scripts_that_were_flushed_are_loaded_again(any_redis: RedisServer) -> None:
    async with connected(any_redis.url, encode(["SCRIPT", "LOAD", _ECHO])) as connection:
        assert await connection.call("EVALSHA", _ECHO_SHA, 0, "a") == b"a"
        await connection.call("SCRIPT", "FLUSH")
        answers: list[Reply] = []
        overtaking: list[Reply] = []

        def answered(reply: Reply) -> None:
            answers.append(reply)
            connection.send([encode(["EVALSHA", _ECHO_SHA, 0, "overtaking"])], overtaking.append)

        # Sent before anybody knows: all of them find no script, none is done twice, none overtakes another.
        for number in range(5):
            connection.send([encode(["EVALSHA", _ECHO_SHA, 0, number])], answered)
        await until(lambda: len(answers) == 5)
        assert [str(answer)[:8] for answer in answers] == ["NOSCRIPT"] * 5
        assert [type(answer) for answer in overtaking] == [StorageUnavailable] * 5
        await until(lambda: connection.connected)
        assert await connection.call("EVALSHA", _ECHO_SHA, 0, "again") == b"again"


async def test_requests_behind_a_lost_script_get_their_own_answers(any_redis: RedisServer) -> None:
    async with connected(any_redis.url, encode(["SCRIPT", "LOAD", _ECHO])) as connection:
        answers: list[Reply] = []
        for command in ("SCRIPT FLUSH", f"EVALSHA {_ECHO_SHA} 0 x", "ECHO done", "PING"):
            connection.send([encode(command.split())], answers.append)
        await until(lambda: len(answers) == 4)
        assert answers[2:] == [b"done", b"PONG"]
        await until(lambda: connection.connected)


async def test_a_loss_while_scripts_are_loaded_again_is_told(tmp_path: Path) -> None:
    """Behind the address may be another server by then, and it may have less."""

    async def forget_and_leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"PING\r\n")
        writer.write(b"+PONG\r\n")
        await reader.readuntil(b"TIME\r\n")
        writer.write(b"-NOSCRIPT No matching script.\r\n")
        await reader.readuntil(b"PING\r\n")

    async with (
        scripted(tmp_path, forget_and_leave, answering(b"+PONG\r\n", commands=9)) as url,
        connected(url, encode(["PING"])) as connection,
    ):
        told: list[int] = []
        connection.on_lost.append(lambda lost: told.append(lost.made))
        assert "NOSCRIPT" in str(await connection.call("TIME"))
        await connection.ready()
        assert await connection.call("PING") == b"PONG"
    assert told == [1], "before there is another connection, and not when it is closed"


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


async def test_a_connection_comes_back_with_its_scripts(own_redis: RedisServer) -> None:
    async with connected(own_redis.url, encode(["SCRIPT", "LOAD", _ECHO])) as connection:
        own_redis.kill()
        await until(lambda: not connection.connected)
        with pytest.raises(StorageUnavailable):
            await connection.call("PING")
        own_redis.start()
        await until(lambda: connection.connected)
        assert await connection.call("EVALSHA", _ECHO_SHA, 0, "again") == b"again"


async def test_what_was_under_way_is_answered_when_the_connection_is_lost(own_redis: RedisServer) -> None:
    async with connected(own_redis.url) as connection:
        answers: list[Reply] = []
        connection.send([encode(["BLPOP", "nothing", 0])], answers.append)
        connection.send([encode(["PING"])], answers.append)
        waiting = asyncio.create_task(connection.call("PING"))
        # Redis has read them once another client sees the first one wait.
        with redis.Redis.from_url(own_redis.url) as other:
            await until(lambda: other.info("clients")["blocked_clients"] == 1)
        own_redis.kill()
        with pytest.raises(StorageUnavailable, match="not known"):
            await waiting
        assert [type(answer) for answer in answers] == [StorageUnavailable] * 2


async def test_a_client_killed_by_an_operator_comes_back(any_redis: RedisServer) -> None:
    async with connected(any_redis.url) as connection:
        number = await id_of(connection)
        with redis.Redis.from_url(any_redis.url) as other:
            other.client_kill_filter(_id=str(number))
        async with asyncio.timeout(60):
            while (found := await id_of(connection)) == number:
                await asyncio.sleep(0)
        assert found > number


async def id_of(connection: Connection) -> int:
    """The client id that Redis has given the connection, once there is one."""
    while True:
        try:
            number: int = await connection.call("CLIENT", "ID")
        except StorageUnavailable:
            await asyncio.sleep(0)
        else:
            return number


async def test_nothing_listens(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        await Connection(f"unix://{tmp_path}/none").open()


async def test_a_url_of_something_else() -> None:
    with pytest.raises(ValueError, match="expected a URL"):
        Connection("http://127.0.0.1")


async def test_close_waits_for_what_was_sent(any_redis: RedisServer) -> None:
    connection = Connection(any_redis.url)
    await connection.open()
    answers: list[Reply] = []
    connection.send([encode(["ECHO", "sent"])], answers.append)
    await connection.close()
    assert answers == [b"sent"]
    with pytest.raises(StorageUnavailable):
        await connection.call("PING")


async def test_close_while_redis_is_away(own_redis: RedisServer) -> None:
    connection = Connection(own_redis.url)
    await connection.open()
    own_redis.kill()
    await until(lambda: not connection.connected)
    await connection.close()


async def test_a_connection_never_opened_may_be_closed(any_redis: RedisServer) -> None:
    await Connection(any_redis.url).close()


# What a Redis can do that a real one does not do on demand


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def scripted(folder: Path, *handlers: Handler) -> AsyncIterator[str]:
    """A server whose n-th connection is handled by the n-th handler, the last one also for all after it."""
    taken = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        handler = handlers[min(taken, len(handlers) - 1)]
        taken += 1
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_unix_server(handle, folder / "sock")
    try:
        yield f"unix://{folder}/sock"
    finally:
        server.close()
        await server.wait_closed()


def answering(text: bytes, *, commands: int = 1) -> Handler:
    """Read that many commands, write the text for each, then wait for the end."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(commands):
            await reader.readuntil(b"PING\r\n")
            writer.write(text)
        await reader.read()

    return handle


async def test_loading_is_waited_for_when_a_connection_comes_back(tmp_path: Path) -> None:
    async def one_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"PING\r\n")
        writer.write(b"+PONG\r\n")

    loading = answering(b"-LOADING Redis is loading the dataset in memory\r\n")
    with structlog.testing.capture_logs() as lines:
        async with (
            scripted(tmp_path, one_answer, loading, loading, answering(b"+PONG\r\n", commands=9)) as url,
            connected(url, encode(["PING"])) as connection,
        ):
            await until(lambda: any(line["event"] == "connection to Redis restored" for line in lines))
            assert await connection.call("PING") == b"PONG"
    told = [line["reason"] for line in lines if line["event"] == "cannot connect to Redis, trying again"]
    assert told == ["LOADING Redis is loading the dataset in memory"], "said once, not at every try"


async def test_loading_at_the_first_connection_is_told(tmp_path: Path) -> None:
    async with scripted(tmp_path, answering(b"-LOADING Redis is loading the dataset in memory\r\n")) as url:
        with pytest.raises(Unreachable, match="LOADING"):
            await Connection(url, [encode(["PING"])]).open()


async def test_a_link_lost_right_after_its_greeting_is_not_kept(tmp_path: Path) -> None:
    async def greet_and_leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"PING\r\n")
        writer.write(b"+PONG\r\n")

    leave = [greet_and_leave] * 20
    async with (
        scripted(tmp_path, *leave, answering(b"+PONG\r\n", commands=9)) as url,
        connected(url, encode(["PING"])) as connection,
    ):
        async with asyncio.timeout(60):
            while True:
                try:
                    answer = await connection.call("PING")
                except StorageUnavailable:
                    await asyncio.sleep(0)
                else:
                    break
        assert answer == b"PONG"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"?what\r\n", id="no RESP"),
        pytest.param(b"+PONG\r\n+PONG\r\n", id="more answers than requests"),
    ],
)
async def test_nonsense_ends_the_link_and_the_next_one_works(tmp_path: Path, text: bytes) -> None:
    with structlog.testing.capture_logs() as lines:
        async with (
            scripted(tmp_path, answering(text), answering(b"+PONG\r\n", commands=9)) as url,
            connected(url) as connection,
        ):
            with contextlib.suppress(StorageUnavailable):
                await connection.call("PING")
            await until(lambda: any(line["event"] == "connection to Redis restored" for line in lines))
            assert await connection.call("PING") == b"PONG"
    assert lines[0]["event"] == "connection to Redis given up"


async def test_a_wrong_password_is_told() -> None:
    with RedisServer(options={"requirepass": "right"}) as server:
        with pytest.raises(Unreachable, match="WRONGPASS"):
            await Connection(server.url.replace("unix://", "unix://:wrong@")).open()
        async with connected(server.url.replace("unix://", "unix://:right@") + "?db=3") as connection:
            assert "db=3" in (await connection.call("CLIENT", "INFO")).decode()


async def test_user_password_and_database_of_a_url(own_redis: RedisServer) -> None:
    with redis.Redis.from_url(own_redis.url) as other:
        other.acl_setuser("mill", enabled=True, passwords=["+p@ss/word"], keys=["*"], commands=["+@all"])
    url = own_redis.url.replace("unix://", "unix://mill:p%40ss%2Fword@") + "?db=2"
    async with connected(url) as connection:
        assert await connection.call("ACL", "WHOAMI") == b"mill"
        assert "db=2" in (await connection.call("CLIENT", "INFO")).decode()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key and a certificate for localhost that signs itself."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    making = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *making.split(), *names], check=True, capture_output=True)
    return key, cert


async def test_tls_as_the_url_says(certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def pong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"PING\r\n")
                writer.write(b"+PONG\r\n")
        writer.close()

    server = await asyncio.start_server(pong, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server:
        async with connected(f"rediss://localhost:{port}?ssl_ca_certs={cert}") as connection:
            assert await connection.call("PING") == b"PONG"
        async with connected(f"rediss://localhost:{port}?ssl_cert_reqs=none&ssl_check_hostname=false") as connection:
            assert await connection.call("PING") == b"PONG"
        with pytest.raises(Unreachable, match="certificate"):
            await Connection(f"rediss://localhost:{port}").open()


async def test_tcp(unused_tcp_port: int) -> None:
    options = {"port": str(unused_tcp_port), "bind": "127.0.0.1"}
    with RedisServer(options=options):
        async with connected(f"redis://127.0.0.1:{unused_tcp_port}/1", *load_commands()) as connection:
            assert await connection.call("PING") == b"PONG"


# Sentinels: whom they name is watched


class Sentinels:
    """What Sentinels say, one time after another."""

    def __init__(self, primary: Place) -> None:
        self.primary = primary
        """What they say to whoever connects."""
        self.named: asyncio.Queue[Place] = asyncio.Queue()

    async def find(self) -> Place:
        return self.primary

    async def names(self) -> AsyncGenerator[Place, None]:
        while True:
            yield await self.named.get()
            self.named.task_done()


@contextlib.contextmanager
def servers(*places: Place) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _, port in places:
            stack.enter_context(RedisServer(options={"port": str(port)}))
        yield


async def port(connection: Connection) -> int:
    """Where a connection is, once it is anywhere."""
    await connection.ready()
    [_, number] = await connection.call("CONFIG", "GET", "port")
    return int(number)


async def test_the_primary_is_left_as_often_as_the_sentinels_name_another(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [("127.0.0.1", port) for port in free_ports(3)]
    first, second, nobody = places
    sentinels = Sentinels(first)
    monkeypatch.setattr(target, "finder", lambda url: (url, sentinels))
    monkeypatch.setattr(finding, "_FIRST_PAUSE_S", 0.0)

    async def said(*named: Place) -> None:
        for each in named:
            sentinels.named.put_nowait(each)
        await sentinels.named.join()

    with servers(first, second):
        async with connected("redis://127.0.0.1") as connection:
            connection.follow()
            await said(first)
            assert (await port(connection), connection.made) == (first[1], 1)
            # Another Sentinel, the first to be asked, does not know of it yet.
            await said(second, second)
            await until(lambda: connection.made == 2)
            assert await port(connection) == second[1]
            # Lost, and back at the one before; and the same way once more.
            await connection.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
            await until(lambda: connection.made == 3)
            assert await port(connection) == first[1]
            await said(first, second)
            await until(lambda: connection.made == 4)
            assert await port(connection) == second[1]
            # One that takes nobody: back to what the Sentinels say.
            sentinels.primary = second
            await said(nobody)
            await until(lambda: connection.made == 5)
            assert await port(connection) == second[1]


async def test_a_primary_that_is_not_named_is_not_left_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    here, another, nobody = [("127.0.0.1", port) for port in free_ports(3)]
    sentinels = Sentinels(here)
    monkeypatch.setattr(target, "finder", lambda url: (url, sentinels))
    monkeypatch.setattr(finding, "_FIRST_PAUSE_S", 600.0)
    with servers(here, another):
        async with connected("redis://127.0.0.1") as connection:
            connection.follow()
            sentinels.named.put_nowait(nobody)
            await until(lambda: connection.made == 2)
            for _ in range(3):
                sentinels.named.put_nowait(nobody)
            await sentinels.named.join()
            assert await connection.call("PING") == b"PONG"
            assert connection.made == 2
            # It is only that one which is left alone.
            sentinels.named.put_nowait(another)
            await until(lambda: connection.made == 3)
            assert await port(connection) == another[1]


def test_who_is_named_again_and_again_is_tried_less_and_less_often() -> None:
    tries, named, another = finding.Tries(), ("a", 1), ("b", 2)
    assert [second for second in range(100) if tries.may(named, second)] == [0, 1, 3, 7, 15, 31, 61, 91]
    assert tries.may(another, 99)
    # It was there, but not for long.
    tries.is_there(named, 120)
    assert not tries.may(named, 120.5)
    tries.is_there(named, 121)
    assert [second for second in range(130, 140) if tries.may(named, second)] == [130, 131, 133, 137]


async def test_what_is_beside_a_connection_goes_where_that_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentinels who have not heard of a promotion would have the copies of another server waited for."""
    first, second = [("127.0.0.1", port) for port in free_ports(2)]
    sentinels = Sentinels(first)
    monkeypatch.setattr(target, "finder", lambda url: (url, sentinels))
    with servers(first, second):
        async with connected("redis://127.0.0.1") as connection:
            connection.follow()
            sentinels.named.put_nowait(second)
            await until(lambda: connection.made == 2)
            assert await port(connection) == second[1]
            # What waits for copies, and what waits for entries.
            copies, watcher = Copies(connection, 60_000), StreamWatcher(connection.url, connection)
            told: asyncio.Queue[object] = asyncio.Queue()
            try:
                copies.confirm("s", 2, -1, told.put_nowait)
                async with asyncio.timeout(60):
                    assert isinstance(await told.get(), NotEnoughReplicasAfterAppend)
                    watcher.watch("s", "0-0", told.put_nowait)
                    await connection.call("XADD", "s", "1-1", "f", "v")
                    assert await told.get() == "1-1"
                assert connection.made == 2
            finally:
                await copies.close()
                await watcher.close()


async def test_what_is_beside_a_connection_follows_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [("127.0.0.1", port) for port in free_ports(2)]
    sentinels = Sentinels(first)
    monkeypatch.setattr(target, "finder", lambda url: (url, sentinels))
    with servers(first, second):
        async with connected("redis://127.0.0.1") as connection:
            beside = Connection(connection.url, beside=connection)
            connect, places = target.Target.connect, [second]

            async def connect_slowly(self: target.Target, make: Callable[[], Link]) -> Link:
                made = await connect(self, make)
                if places:
                    sentinels.primary = places.pop()
                    connection.renew()
                    await until(lambda: connection.made == 2)
                return made

            monkeypatch.setattr(target.Target, "connect", connect_slowly)
            beside.connect_soon()
            assert await port(beside) == second[1]
            assert not places
            await beside.close()


async def test_entries_are_waited_for_where_the_first_connection_fails(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher, told = StreamWatcher(connection.url, connection), asyncio.Event()
    opens, failing = Connection.open, [Unreachable("Redis does not answer")]

    async def open_later(self: Connection) -> None:
        if failing:
            raise failing.pop()
        await opens(self)

    monkeypatch.setattr(Connection, "open", open_later)
    try:
        watcher.watch("s", "0-0", lambda _: told.set())
        await connection.call("XADD", "s", "1-1", "f", "v")
        async with asyncio.timeout(60):
            await told.wait()
    finally:
        await watcher.close()
