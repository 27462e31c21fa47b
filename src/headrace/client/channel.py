"""A blocking connection to one broker, without negotiation or login."""

import itertools
import socket
from collections import deque
from struct import Struct
from typing import Any, Final

from headrace.protocol import headers
from headrace.protocol.errors import DecodeError
from headrace.protocol.message import Message
from headrace.protocol.messages import RESPONSES, ProduceRequest

_SIZE: Final = Struct(">i")
_MOST_FRAME: Final = 256 << 20
"""Twice the largest request that a server accepts by default (`socket.request.max.bytes`, 100 MB)."""
_STEP: Final = 16 << 20
"""Allocate memory as bytes arrive, not by the announced size."""


class ConnectionEnded(Exception):
    """The broker closed the connection."""


class NotKafka(DecodeError):
    """The response does not match the request."""


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a TCP connection with a timeout for each wait. Raises OSError."""
    link = socket.create_connection((host, port), timeout_s)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


class Channel:
    """Pipelined requests; responses arrive in order. Waiting raises OSError, including TimeoutError."""

    def __init__(self, link: socket.socket, client_id: str | None) -> None:
        self.socket = link
        self._client_id = client_id
        self._numbers = itertools.count(1)
        self._asked: deque[tuple[int, int, int]] = deque()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    @property
    def idle(self) -> bool:
        """Whether no response is pending."""
        return not self._asked

    def ask(self, request: Message, version: int) -> Any:
        """Send a request and return its response, the only pending one."""
        self.send(request, version)
        return self.receive()

    def send(self, request: Message, version: int, *, answered: bool = True) -> None:
        """Send a request. `answered` is false for Produce with acks=0, which has no response."""
        number = next(self._numbers)
        chunks = [self.head(request.API_KEY, version, number), *request.encode(version)]
        frame = [_SIZE.pack(sum(map(len, chunks))), *chunks]
        if isinstance(request, ProduceRequest):
            for chunk in frame:  # avoids copies of batches
                self.socket.sendall(chunk)
        else:
            self.socket.sendall(b"".join(frame))
        if answered:
            self._asked.append((request.API_KEY, version, number))

    def head(self, api_key: int, version: int, number: int = 0) -> bytes:
        """Return a request's header, also for an unknown API or version."""
        return headers.encode_request_header(api_key, version, number, self._client_id)

    def receive(self) -> Any:
        """Return the response to the oldest pending request. Raises ConnectionEnded, DecodeError."""
        api_key, version, frame, position = self.receive_body()
        return RESPONSES[api_key].decode(frame, position, version)

    def receive_body(self) -> tuple[int, int, bytes | bytearray, int]:
        """Return an undecoded response: API key and version, frame, and start of the body in it."""
        api_key, version, number = self._asked.popleft()
        frame = self.receive_frame()
        answered, position = headers.decode_response_header(frame, 0, api_key, version)
        if answered != number:
            raise NotKafka(f"an answer to request {answered} instead of {number}")
        return api_key, version, frame, position

    def receive_frame(self) -> bytes | bytearray:
        """Return a response without its length. Raises ConnectionEnded, NotKafka."""
        size: int = _SIZE.unpack(self._exactly(_SIZE.size))[0]
        if not 0 <= size <= _MOST_FRAME:
            raise NotKafka(f"a frame of {size} bytes, and {_MOST_FRAME} at most are taken")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytearray:
        data, position = bytearray(min(size, _STEP)), 0
        while position < size:
            if position == len(data):
                data += bytes(min(size - position, position))
            with memoryview(data) as view:
                position += self._some(view[position:], position, size)
        return data

    def _some(self, room: memoryview, position: int, size: int) -> int:
        try:
            got = self.socket.recv_into(room)
        except ConnectionResetError:
            got = 0
        if not got:
            raise ConnectionEnded(f"after {position} of {size} bytes")
        return got
