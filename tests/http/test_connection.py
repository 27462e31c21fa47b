"""What a client may take its time for, and what not: heads, bodies, answers, connections."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
import structlog
from starlette.types import Receive, Scope, Send
from tests.harness.waiting import until

from headrace.broker.admin.connections import ConnectionLimits
from headrace.http.connection import BODY_MS, HEAD_MS, IDLE_MS, MOST_FIELDS, PRESSED_MS, UNTAKEN_MS
from headrace.http.listener import HttpListener
from headrace.testing.clock import ManualClock

START = b"POST / HTTP/1.1\r\nhost: localhost\r\n"
SECOND_MS = 1_000


class App:
    """Reads the body, and answers with as much as is wanted."""

    def __init__(self) -> None:
        self.answer = b"ok"
        self.requests = 0
        self.parsed = 0
        self.received = 0
        self.go_on = asyncio.Event()
        """Answers wait for it."""
        self.go_on.set()
        self.endless = False
        """Whether answers go on until the client is gone."""
        self.gone = 0
        """How many clients were missed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.parsed += 1
        more = True
        while more:
            message: Any = await receive()
            if message["type"] == "http.disconnect":
                return
            more = message["more_body"]
            self.received += len(message["body"])
        if self.endless:
            await self._go_on_until_gone(receive, send)
            return
        await self.go_on.wait()
        self.requests += 1
        headers = [(b"content-length", b"%d" % len(self.answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.answer})

    async def _go_on_until_gone(self, receive: Receive, send: Send) -> None:
        async def miss() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        missed = asyncio.create_task(miss())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not missed.done():
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0)
        self.gone += 1


class Served:
    """A listener on a clock that is moved by hand."""

    def __init__(self, most: int, most_per_host: int) -> None:
        self.clock = ManualClock()
        self.app = App()
        self.pressed = False
        self.limits = ConnectionLimits(most, most_per_host)
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        # Of connections too: with megabytes of the kernel's between, what a client takes shows in bursts only.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 << 10)
        self.port = sock.getsockname()[1]
        self.listener = HttpListener(self.app, sock, clock=self.clock, limits=self.limits)
        self.listener.pressed = lambda: self.pressed

    async def connect(self, **more: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        known = self.listener.connections
        made = await asyncio.open_connection("127.0.0.1", self.port, **more)
        await until(lambda: self.listener.connections > known)
        return made

    def pass_ms(self, ms: int) -> None:
        """Let time pass."""
        self.clock.advance(ms)


@asynccontextmanager
async def served(most: int = 1000, most_per_host: int = 1000) -> AsyncIterator[Served]:
    made = Served(most, most_per_host)
    await made.listener.start()
    try:
        yield made
    finally:
        await made.listener.stop()


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection is closed."""
    async with asyncio.timeout(60):
        return await reader.read()


def refusal(received: bytes) -> tuple[int, str]:
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), msgspec.json.decode(body)["code"]


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with served() as here:
        reader, writer = await here.connect()
        here.pass_ms(IDLE_MS - 2 * SECOND_MS)
        assert here.listener.connections == 1
        here.pass_ms(3 * SECOND_MS)
        assert await closed(reader) == b""
        writer.close()


async def test_a_connection_that_rests_between_requests_is_closed_later() -> None:
    async with served() as here:
        reader, writer = await here.connect()
        for _ in range(3):
            writer.write(START + b"content-length: 2\r\n\r\nhi")
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
            here.pass_ms(IDLE_MS - 2 * SECOND_MS)
        here.pass_ms(3 * SECOND_MS)
        assert await closed(reader) == b""
        writer.close()


async def test_a_head_has_to_come_in_time_however_steadily() -> None:
    async with served() as here:
        reader, writer = await here.connect()
        other, other_writer = await here.connect()
        writer.write(START)
        for _ in range(HEAD_MS // SECOND_MS - 1):
            writer.write(b"x: y\r\n")
            await writer.drain()
            # By when another connection has been served, this one was read from.
            other_writer.write(START + b"content-length: 0\r\n\r\n")
            await other.readuntil(b"ok")
            here.pass_ms(SECOND_MS)
        assert here.listener.connections == 2
        here.pass_ms(2 * SECOND_MS)
        assert refusal(await closed(reader)) == (408, "RequestTimeout")
        writer.close()
        other_writer.close()


async def test_a_body_has_to_come_in_time() -> None:
    async with served() as here:
        reader, writer = await here.connect()
        writer.write(START + b"content-length: 100\r\n\r\n12345")
        await until(lambda: here.app.parsed)
        here.pass_ms(BODY_MS - 2 * SECOND_MS)
        assert not reader.at_eof()
        here.pass_ms(3 * SECOND_MS)
        assert refusal(await closed(reader)) == (408, "RequestTimeout")
        assert here.app.requests == 0
        writer.close()


async def test_a_large_body_has_more_time() -> None:
    async with served() as here:
        reader, writer = await here.connect()
        size = 4 << 20
        writer.write(START + b"content-length: %d\r\n\r\n" % size + bytes(size - 1))
        await writer.drain()
        await until(lambda: here.app.received >= size - 1)
        here.pass_ms(BODY_MS + 60 * SECOND_MS)
        writer.write(b"!")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.mark.parametrize("pressed", [False, True])
async def test_an_answer_has_to_be_taken(pressed: bool) -> None:
    async with served() as here:
        here.pressed = pressed
        here.app.answer = bytes(32 << 20)
        _, writer = await here.connect(limit=1024)
        writer.write(START + b"content-length: 0\r\n\r\n")
        await until(lambda: here.app.requests)
        limit_ms = PRESSED_MS if pressed else UNTAKEN_MS
        here.pass_ms(limit_ms - 2 * SECOND_MS)
        assert here.listener.connections == 1
        here.pass_ms(4 * SECOND_MS)
        await until(lambda: not here.listener.connections)
        writer.close()


async def test_an_answer_has_to_be_taken_at_some_speed_while_others_wait() -> None:
    async with served() as here:
        here.pressed = True
        here.app.answer = bytes(32 << 20)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            client.connect(("127.0.0.1", here.port))
            client.sendall(START + b"content-length: 0\r\n\r\n")
            await until(lambda: here.app.requests)
            client.setblocking(False)
            for _ in range(100):
                taken = 0
                while taken < 128 << 10 and here.listener.connections:
                    with suppress(OSError):
                        taken += len(client.recv((128 << 10) - taken))
                    await asyncio.sleep(0)
                here.pass_ms(5 * SECOND_MS)
                await asyncio.sleep(0)
            assert not here.listener.connections


async def test_requests_that_are_sent_ahead_wait_and_are_all_answered() -> None:
    async with served() as here:
        reader, writer = await here.connect()
        count = 5_000
        writer.write((START + b"content-length: 1\r\n\r\nx") * count)
        for _ in range(count):
            await reader.readuntil(b"ok")
        assert here.app.requests == count
        writer.close()


@pytest.mark.parametrize(
    "wrong", [b"no request\r\n\r\n", START + b"transfer-encoding: chunked\r\n\r\nno size\r\n", START + b" x: y\r\n"]
)
@pytest.mark.parametrize("ahead", [1, 3])
async def test_errors_after_requests_follow_their_answers(wrong: bytes, ahead: int) -> None:
    """Sent first, it would be taken for the response to a completed request."""
    async with served() as here:
        here.app.go_on.clear()
        reader, writer = await here.connect()
        writer.write((START + b"content-length: 1\r\n\r\nx") * ahead + wrong)
        await until(lambda: here.app.parsed)
        here.app.go_on.set()
        for _ in range(ahead):
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        assert refusal(await closed(reader)) == (400, "CannotParseRequest")
        assert here.app.requests == ahead
        writer.close()


async def test_errors_in_a_body_are_reported_at_once() -> None:
    async with served() as here:
        reader, writer = await here.connect()
        writer.write(START + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\nno size\r\n")
        assert refusal(await closed(reader)) == (400, "CannotParseRequest")
        assert here.app.requests == 0
        writer.close()


async def test_who_goes_is_missed_also_with_requests_sent_ahead() -> None:
    async with served() as here:
        here.app.endless = True
        reader, writer = await here.connect()
        writer.write((START + b"content-length: 1\r\n\r\nx") * 3)
        await reader.readuntil(b"x")
        writer.transport.abort()
        await until(lambda: here.app.gone)
        assert here.app.parsed == 1


UPGRADE = START + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
LENGTH, CHUNKS = b"content-length: %d\r\n\r\n%b", b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("framing", "body"), [(LENGTH, b""), (LENGTH, b"xyz"), (LENGTH, START), (CHUNKS, START)])
async def test_there_is_nothing_to_upgrade_to(framing: bytes, body: bytes, apart: bool) -> None:
    """Java's client asks for HTTP/2 with each first request. Its body is one, and later requests are answered."""
    framed = framing % (len(body), body)
    count = 3
    async with served() as here:
        reader, writer = await here.connect()
        requests = (UPGRADE + framed) * count + START + framed
        for place in range(len(requests)) if apart else ():
            writer.write(requests[place : place + 1])
            await writer.drain()
            await asyncio.sleep(0)
        if not apart:
            writer.write(requests)
        for _ in range(count + 1):
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        assert here.app.requests == here.app.parsed == count + 1
        assert here.app.received == len(body) * (count + 1)
        writer.close()


async def test_a_body_in_tiny_chunks_is_read_whole() -> None:
    async with served() as here:
        reader, writer = await here.connect()
        writer.write(START + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        writer.write(START + b"content-length: 0\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_too_many_headers_are_refused() -> None:
    async with served() as here:
        reader, writer = await here.connect()
        writer.write(START + b"a: b\r\n" * MOST_FIELDS + b"\r\n")
        assert refusal(await closed(reader)) == (400, "CannotParseRequest")
        writer.close()


async def test_non_http_data_is_reported_with_its_address() -> None:
    async with served() as here:
        with structlog.testing.capture_logs() as lines:
            reader, writer = await here.connect()
            writer.write(b"\0\0\0\x14\0\x12\0\3\0\0\0\1\0\7rdkafka\0")  # a Kafka client on the wrong port
            assert refusal(await closed(reader)) == (400, "CannotParseRequest")
            writer.close()
        assert [(line["event"], line["client"]) for line in lines] == [("malformed request", "127.0.0.1")]


@pytest.mark.parametrize(("most", "most_per_host"), [(2, 1000), (1000, 2)])
async def test_only_so_many_connections(most: int, most_per_host: int, caplog: pytest.LogCaptureFixture) -> None:
    async with served(most, most_per_host) as here:
        first, second = await here.connect(), await here.connect()
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            assert refusal(await closed(reader)) == (503, "ServiceUnavailable")
            writer.close()
        await until(lambda: here.listener.connections == 2)
        first[1].close()
        await until(lambda: here.listener.connections == 1)
        reader, writer = await here.connect()
        writer.write(START + b"content-length: 0\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        for each in (writer, second[1]):
            each.close()
