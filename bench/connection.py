"""A connection that speaks the protocol itself, for members that no client library runs."""

import asyncio
import struct
from collections import deque
from itertools import count
from typing import Any, Self

from headrace.protocol import headers
from headrace.protocol.message import Message
from headrace.protocol.messages import RESPONSES

_SIZE = struct.Struct(">i")


class Connection:
    """Requests in their order, of one client or of many; the server answers in that order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = count()
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def connect(cls, address: str) -> Self:
        host, port = address.rsplit(":", 1)
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, request: Message, version: int) -> Any:
        """The answer to a request. Raises ConnectionError when the connection has ended."""
        number = next(self._numbers)
        head = headers.encode_request_header(request.API_KEY, version, number, "bench")
        frame = head + b"".join(request.encode(version))
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._writer.write(_SIZE.pack(len(frame)) + frame)
        if self._reading.done():
            raise ConnectionError("the server has closed the connection")
        answer = await waiting
        _, position = headers.decode_response_header(answer, 0, request.API_KEY, version)
        return RESPONSES[request.API_KEY].decode(answer, position, version)

    async def _read(self) -> None:
        try:
            while True:
                (size,) = _SIZE.unpack(await self._reader.readexactly(4))
                answer = await self._reader.readexactly(size)
                waiting = self._waiting.popleft()
                if not waiting.done():
                    waiting.set_result(answer)
        except (asyncio.IncompleteReadError, OSError) as error:
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_exception(ConnectionError(f"the connection has ended: {error}"))

    def close(self) -> None:
        self._reading.cancel()
        self._writer.close()
