import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import hiredis
import pytest
import redis
import redis.asyncio
import structlog
from tests.harness.ports import free_ports
from tests.harness.redis import RedisServer
from tests.harness.waiting import until
from tests.storage.conftest import connected

from headrace.storage.errors import Unreachable
from headrace.storage.redis.connection import Connection, Readiness
from headrace.storage.redis.protocol import Reply, encode
from headrace.storage.redis.script_calls import load_commands
from headrace.topics.errors import StorageUnavailable, StorageUnreachable

_ECHO = "return ARGV[1]"
_ECHO_SHA = "098e0f0d1448c0a81dafe820f66d460eb09263da"


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
    assert [(line["event"], line["to"]) for line in lines] == [("response handling failed", "a command to Redis")]


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
        assert [type(answer) for answer in overtaking] == [StorageUnreachable] * 5
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


async def test_a_loss_while_scripts_are_loaded_again_is_reported(tmp_path: Path) -> None:
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


async def test_a_connection_comes_back_with_its_scripts(own_redis: RedisServer) -> None:
    async with connected(own_redis.url, encode(["SCRIPT", "LOAD", _ECHO])) as connection:
        own_redis.kill()
        await until(lambda: not connection.connected)
        with pytest.raises(StorageUnavailable):
            await connection.call("PING")
        own_redis.start()
        await until(lambda: connection.connected)
        assert await connection.call("EVALSHA", _ECHO_SHA, 0, "again") == b"again"


async def test_who_asks_for_its_health_is_not_held_up_where_writes_are_paused(own_redis: RedisServer) -> None:
    """As in a failover in order: writes wait for its end, and so do later requests on a connection."""
    async with redis.asyncio.Redis.from_url(own_redis.url) as link, connected(own_redis.url) as connection:
        await link.client_pause(600_000, all=False)
        assert await connection.readiness(30) == Readiness()
        assert await connection.call("GET", "a", reads=True) is None


async def test_a_canceled_connect_leaves_no_connection(own_redis: RedisServer) -> None:
    async with redis.asyncio.Redis.from_url(own_redis.url) as link:
        before = len(await link.client_list())
        connection = Connection(own_redis.url)
        opening = asyncio.get_running_loop().create_task(connection.open())
        while not connection.made:
            await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert not connection.connected
        async with asyncio.timeout(30):
            while len(await link.client_list()) > before:
                await asyncio.sleep(0)
        await connection.close()


async def test_what_becomes_of_a_connection_is_no_clients_request(own_redis: RedisServer) -> None:
    """Also where the first to need it was one."""
    told: list[Mapping[str, object]] = []

    def keep(_logger: object, _method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
        told.append(line)
        raise structlog.DropEvent

    before = structlog.get_config()["processors"]
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, keep])
    try:
        with structlog.contextvars.bound_contextvars(client_id="billing"):
            connection = Connection(own_redis.url)
            await connection.open()
        own_redis.kill()
        await until(lambda: any("cannot connect" in str(line["event"]) for line in told))
        await connection.close()
    finally:
        structlog.configure(processors=before)
    assert [line for line in told if "client_id" in line] == []
    assert told[0]["event"] == "connection to Redis lost"


async def test_calls_in_flight_are_answered_when_the_connection_is_lost(own_redis: RedisServer) -> None:
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


async def test_loading_at_the_first_connection_is_reported(tmp_path: Path) -> None:
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
    assert lines[0]["event"] == "connection to Redis closed"


async def test_a_wrong_password_is_reported() -> None:
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


async def test_tcp() -> None:
    [port] = free_ports(1)
    options = {"port": str(port), "bind": "127.0.0.1"}
    with RedisServer(options=options):
        async with connected(f"redis://127.0.0.1:{port}/1", *load_commands()) as connection:
            assert await connection.call("PING") == b"PONG"
