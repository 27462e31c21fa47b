"""What a client does not take of a large answer counts as left to be written, over TLS too."""

import asyncio
import datetime as dt
import ssl
from collections.abc import Callable
from typing import cast

import pytest
import uvloop

from headrace.security.tls import handshakes
from headrace.security.tls.files import GeneratedFiles, create

SIZE = 16 << 20


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> GeneratedFiles:
    return create(tmp_path_factory.mktemp("own"), (), "jane", dt.datetime.now(dt.UTC))


class Answering(asyncio.Protocol):
    """Answers as soon as a client connects."""

    def __init__(self, left: "asyncio.Future[tuple[int, bool]]") -> None:
        self._left = left
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        given = cast("asyncio.Transport", transport)
        handshakes.write(given, bytes(SIZE))
        self._left.set_result((given.get_write_buffer_size(), self._paused))

    def pause_writing(self) -> None:
        self._paused = True


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_what_is_not_taken_is_left_and_the_writer_paused(
    own: GeneratedFiles, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def answer() -> tuple[int, bool]:
        loop = asyncio.get_running_loop()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own.server)
        left: asyncio.Future[tuple[int, bool]] = loop.create_future()
        server = await loop.create_server(lambda: Answering(left), "127.0.0.1", 0, ssl=context)
        trusting = ssl.create_default_context(cafile=own.authority)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=trusting, limit=1 << 16)
        found = await left
        assert len(await reader.readexactly(SIZE)) == SIZE
        writer.transport.abort()
        server.close()
        return found

    with asyncio.Runner(loop_factory=new_loop) as runner:
        size, paused = runner.run(answer())
    assert size > SIZE // 2
    assert paused
