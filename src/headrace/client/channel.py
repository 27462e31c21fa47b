"""A blocking connection to one broker, by the codec that the server uses: requests out, answers in their order.

It negotiates nothing and knows no login: who asks says in which version, right or wrong.
"""

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
"""More than two of the largest batches that a server takes by its defaults (`socket.request.max.bytes`, 100 MB)."""
_STEP: Final = 16 << 20
"""Memory is taken as bytes come, not on a server's word."""


class ConnectionEnded(Exception):
    """The other side closed the connection."""


class NotKafka(DecodeError):
    """What came cannot be an answer to what was asked."""


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """A TCP connection for requests; every wait for the other side ends after `timeout_s`. Raises OSError."""
    link = socket.create_connection((host, port), timeout_s)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


class Channel:
    """Requests may be sent ahead; answers are received in the order of the requests.

    Every method that waits raises OSError (TimeoutError among them) for what the network does.
    """

    def __init__(self, link: socket.socket, client_id: str | None) -> None:
        """Ask over a connected socket, which is this connection's from now on."""
        self.socket = link
        self._client_id = client_id
        self._numbers = itertools.count(1)
        self._asked: deque[tuple[int, int, int]] = deque()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    @property
    def idle(self) -> bool:
        """Whether every request has had its answer."""
        return not self._asked

    def ask(self, request: Message, version: int) -> Any:
        """Send a request and receive its answer; nothing else may be under way."""
        self.send(request, version)
        return self.receive()

    def send(self, request: Message, version: int, *, answered: bool = True) -> None:
        """Send a request. `answered` false: none will come, as for Produce with acks=0."""
        number = next(self._numbers)
        chunks = [self.head(request.API_KEY, version, number), *request.encode(version)]
        frame = [_SIZE.pack(sum(map(len, chunks))), *chunks]
        if isinstance(request, ProduceRequest):
            for chunk in frame:  # batches are large: not copied
                self.socket.sendall(chunk)
        else:
            self.socket.sendall(b"".join(frame))
        if answered:
            self._asked.append((request.API_KEY, version, number))

    def head(self, api_key: int, version: int, number: int = 0) -> bytes:
        """A request's header, also for an API or a version that does not exist."""
        return headers.encode_request_header(api_key, version, number, self._client_id)

    def receive(self) -> Any:
        """The answer to the oldest request that has none yet.

        Raises:
            ConnectionEnded: the other side closed the connection instead.
            DecodeError: what came is no such answer.
        """
        api_key, version, frame, position = self.receive_body()
        return RESPONSES[api_key].decode(frame, position, version)

    def receive_body(self) -> tuple[int, int, bytes | bytearray, int]:
        """As `receive`, undecoded: API key and version of the request, the frame, and where in it the body begins."""
        api_key, version, number = self._asked.popleft()
        frame = self.receive_frame()
        answered, position = headers.decode_response_header(frame, 0, api_key, version)
        if answered != number:
            raise NotKafka(f"an answer to request {answered} instead of {number}")
        return api_key, version, frame, position

    def receive_frame(self) -> bytes | bytearray:
        """One answer's bytes without their length. Raises ConnectionEnded, NotKafka."""
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
        """How many bytes have come, one at least; behind `position` of `size`."""
        try:
            got = self.socket.recv_into(room)
        except ConnectionResetError:
            got = 0
        if not got:
            raise ConnectionEnded(f"after {position} of {size} bytes")
        return got
