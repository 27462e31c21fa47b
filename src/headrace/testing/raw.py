"""A Kafka client that does exactly what it is told, right or wrong: for tests of what a server answers on the wire."""

import itertools
import socket
from collections import deque
from struct import Struct
from types import TracebackType
from typing import Any, Self

from headrace.kafka.codec import headers
from headrace.kafka.codec.message import Message
from headrace.kafka.codec.messages import RESPONSES

_SIZE = Struct(">i")
_TIMEOUT_S = 15


class ConnectionEnded(Exception):
    """The server closed the connection."""


class RawClient:
    """One connection. Requests may be sent ahead; answers are received in the order of the requests."""

    def __init__(self, address: str, *, client_id: str | None = "raw", timeout_s: float = _TIMEOUT_S) -> None:
        """Connect to HOST:PORT; every wait for the server ends after `timeout_s` with TimeoutError."""
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id
        self._numbers = itertools.count(1)
        self._asked: deque[tuple[int, int, int]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def ask(self, request: Message, version: int) -> Any:
        """Send a request and receive its answer; nothing else may be under way."""
        self.send(request, version)
        return self.receive()

    def send(self, request: Message, version: int, *, answered: bool = True) -> None:
        """Send a request. `answered` false: none will come, as for Produce with acks=0."""
        number = next(self._numbers)
        self.send_frame(self.head(request.API_KEY, version, number) + b"".join(request.encode(version)))
        if answered:
            self._asked.append((request.API_KEY, version, number))

    def head(self, api_key: int, version: int, number: int = 0) -> bytes:
        """A request's header, also for an API or a version that does not exist."""
        return headers.encode_request_header(api_key, version, number, self._client_id)

    def send_frame(self, frame: bytes) -> None:
        """Send bytes with their length before them."""
        self.send_bytes(_SIZE.pack(len(frame)) + frame)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def receive(self, *, body_version: int | None = None) -> Any:
        """The answer to the oldest request that has none yet.

        Args:
            body_version: the version of the body where it differs from the request's (ApiVersions, KIP-511).

        Raises:
            ConnectionEnded: the server closed the connection instead.
            AssertionError: the answer belongs to another request.
        """
        api_key, version, number = self._asked.popleft()
        frame = self.receive_frame()
        answered, position = headers.decode_response_header(frame, 0, api_key, version)
        assert answered == number, f"an answer to request {answered}, expected one to {number}"
        return RESPONSES[api_key].decode(frame, position, version if body_version is None else body_version)

    def receive_frame(self) -> bytes:
        """One answer's bytes without their length. Raises ConnectionEnded."""
        return self._receive(_SIZE.unpack(self._receive(_SIZE.size))[0])

    def _receive(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            try:
                chunk = self.socket.recv(count - len(received))
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                raise ConnectionEnded(f"after {len(received)} of {count} bytes")
            received += chunk
        return bytes(received)

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing arrives for a while: no answer, and no end of the connection."""
        before = self.socket.gettimeout()
        self.socket.settimeout(seconds)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        except ConnectionResetError:
            return False
        finally:
            self.socket.settimeout(before)
        return False

    def ends(self) -> bool:
        """Wait for the server to say something: True when it closes the connection, False when it answers."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
