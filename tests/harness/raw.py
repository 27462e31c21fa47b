"""A Kafka client that sends exactly the given requests, valid or not, for tests of the wire protocol."""

import socket
from struct import Struct
from types import TracebackType
from typing import Self

from headrace.client.channel import Channel, connect

_SIZE = Struct(">i")
_TIMEOUT_S = 60


class RawClient(Channel):
    """One connection that can also send what is no request, and wait for nothing."""

    def __init__(self, address: str, *, client_id: str | None = "raw", timeout_s: float = _TIMEOUT_S) -> None:
        """Connect to HOST:PORT; every wait for the server ends after `timeout_s` with TimeoutError."""
        host, port = address.rsplit(":", 1)
        super().__init__(connect(host, int(port), timeout_s), client_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def send_frame(self, frame: bytes) -> None:
        """Send bytes with their length before them."""
        self.send_bytes(_SIZE.pack(len(frame)) + frame)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def receive_frame(self) -> bytes:
        """One answer's bytes without their length, to compare and to keep. Raises ConnectionEnded, NotKafka."""
        return bytes(super().receive_frame())

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
