import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from structlog.testing import capture_logs

from headrace.http.app import Health, create
from headrace.http.listener import HttpListener

WELL = Health(version="1.2.3", storage=True)
ILL = Health(version="1.2.3", storage=False, detail="Redis at unix:///x does not answer")


def bound() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


@asynccontextmanager
async def listening(health: Health, *routes: Route) -> AsyncIterator[int]:
    """A listener that says `health`; gives its port."""

    async def tell() -> Health:
        return health

    sock = bound()
    port = sock.getsockname()[1]
    listener = HttpListener(create(tell, routes), sock)
    await listener.start()
    try:
        yield port
    finally:
        await listener.stop()


async def get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body of one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def test_healthz_of_a_well_server_is_200() -> None:
    async with listening(WELL) as port:
        status, body = await get(port, "/healthz")
    assert status == 200
    assert msgspec.json.decode(body) == {"status": "ok", "version": "1.2.3", "storage": "reachable"}


async def test_healthz_without_storage_is_503_and_says_why() -> None:
    async with listening(ILL) as port:
        status, body = await get(port, "/healthz")
    assert status == 503
    assert msgspec.json.decode(body) == {
        "status": "failing",
        "version": "1.2.3",
        "storage": "unreachable",
        "detail": "Redis at unix:///x does not answer",
    }


async def test_healthz_with_a_part_of_the_storage_is_200_and_says_which_is_not_there() -> None:
    async with listening(Health(version="1.2.3", storage=True, detail="10.0.0.1:6379: no connection")) as port:
        status, body = await get(port, "/healthz")
    assert status == 200
    told = msgspec.json.decode(body)
    assert (told["storage"], told["detail"]) == ("partly usable", "10.0.0.1:6379: no connection")


async def test_unknown_paths_are_not_found() -> None:
    async with listening(WELL) as port:
        assert (await get(port, "/nowhere"))[0] == 404


async def test_other_listeners_are_mounted_too() -> None:
    async def hello(_: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    async with listening(WELL, Route("/20180418/hello", hello)) as port:
        assert await get(port, "/20180418/hello") == (200, b"hello")


async def test_signals_stay_with_the_server() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    async with listening(WELL):
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


async def test_stopped_it_answers_no_more_and_closes_idle_connections() -> None:
    async with listening(WELL) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_an_answer_that_does_not_come_is_given_up_in_the_end() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def never(_: Request) -> PlainTextResponse:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("it ended by itself")

    with capture_logs() as lines:
        async with listening(WELL, Route("/20180418/never", never)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /20180418/never HTTP/1.1\r\nHost: x\r\n\r\n")
            await begun.wait()
        assert ended.is_set()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
    assert [line["connections"] for line in lines if line["event"] == "connections closed with unsent responses"] == [1]


async def test_a_listener_that_never_started_can_be_stopped() -> None:
    async def tell() -> Health:
        return WELL

    sock = bound()
    await HttpListener(create(tell), sock).stop()
    assert sock.fileno() == -1
