"""Bytes of one connection, cut into requests.

Reading copies a byte once: small frames are parsed where the kernel put them, in a buffer shared by all connections;
a frame that does not fit is read straight into memory of its own, which the record batches in it then keep.
"""

import asyncio
from abc import ABC, abstractmethod
from struct import Struct
from typing import TYPE_CHECKING, cast

from headrace.kafka.server.login import MOST_LOGIN_BYTES, Login
from headrace.kafka.server.memory_pool import Frame
from headrace.kafka.server.registry import APIS
from headrace.security.tls.writes import unread

if TYPE_CHECKING:
    from headrace.kafka.server.listener import KafkaListener

_SIZE = Struct(">i")
_LEAST_BEGUN = 2
"""Bytes of a frame by which its API is known."""


_HANDSHAKE = 0x1603
"""With what TLS begins: a record of a handshake, of TLS 1.something."""


def _misfit(size: int, most: int) -> str:
    """Why no request begins with these four bytes."""
    if size >> 16 == _HANDSHAKE:
        return "this looks like TLS, and the listener has none: clients of it use PLAINTEXT or SASL_PLAINTEXT"
    return f"a frame of {size} bytes: wanted 1 to {most} (socket.request.max.bytes)"


class Framing(asyncio.BufferedProtocol, ABC):
    """The part of a connection that knows where a request begins and ends; the rest serves it."""

    def __init__(self, listener: "KafkaListener") -> None:
        self.login = Login(listener.logins)
        self._memory = listener.memory
        self._most_bytes = listener.max_request_bytes
        self._scratch = listener.scratch
        self._scratch_view = listener.scratch_view
        self._head = b""  # the first bytes of a frame, cut off by the end of a read
        self._frame: Frame | None = None
        self._closed = False
        self._read_paused = False
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)

    @abstractmethod
    def _request(self, buffer: memoryview, start: int, stop: int, *, owned: bool) -> None:
        """Serve one request, or put it off.

        Args:
            buffer: where the request lies.
            start: its first byte, behind its length.
            stop: the byte behind it.
            owned: the buffer is the request's own and may be kept; else it is overwritten by the next read.
        """

    @abstractmethod
    def close(self, reason: str, *, expected: bool = False) -> None:
        """Close after a line in the log."""

    @abstractmethod
    def memory_free(self) -> None:
        """There is memory for requests again."""

    @abstractmethod
    def may_open(self) -> None:
        """A large request may be read now."""

    def eof_received(self) -> bool:
        """The client sends no more: close."""
        return False

    def _pause_reading(self) -> None:
        """Take no more from the client for now."""
        if not self._read_paused and not self._closed:
            self._read_paused = True
            self.transport.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self._frame is not None:
            return self._frame.room()
        head = self._head
        if head:
            self._scratch[: len(head)] = head
            return self._scratch_view[len(head) :]
        return self._scratch_view

    def _take_unread(self) -> None:
        """Take what the client sent before it left, and the event loop has not handed on."""
        while not self._closed and (count := unread(self.transport, self.get_buffer(-1))):
            self.buffer_updated(count)

    def _took(self, nbytes: int) -> bool:
        """Count bytes of a frame that has memory of its own; whether it is complete now."""
        assert self._frame is not None
        if self._frame.took(nbytes):
            return True
        self._wait_if_starved(self._frame)
        return False

    def _wait_if_starved(self, frame: Frame) -> None:
        if frame.starved:
            self._pause_reading()
            self._memory.wait(self)

    def _take_frame(self) -> None:
        """Hand over the frame that has memory of its own."""
        frame, self._frame = self._frame, None
        assert frame is not None
        self._request(frame.take(), 0, frame.size, owned=True)

    def _take_frames(self, nbytes: int) -> None:
        """Hand over the frames that are complete with the bytes that one read has put into the shared buffer."""
        end = len(self._head) + nbytes
        self._head = b""
        scratch = self._scratch
        position = 0
        while end - position >= 4 and not self._closed:
            size: int = _SIZE.unpack_from(scratch, position)[0]
            if not 0 < size <= self._most_bytes:
                self.close(_misfit(size, self._most_bytes))
                return
            if end - position < 4 + min(size, _LEAST_BEGUN):
                break
            position += 4
            if end - position < size:
                self._begin_frame(size, self._scratch_view[position:end])
                return
            stop = position + size
            self._request(self._scratch_view, position, stop, owned=False)
            position = stop
        if position < end and not self._closed:
            self._head = bytes(self._scratch_view[position:end])

    def _begin_frame(self, size: int, begun: memoryview) -> None:
        """Go on with a request that one read has not brought whole, if it may be as large as it says."""
        if self.login.pending and size > MOST_LOGIN_BYTES:
            self.close(f"a frame of {size} bytes before the client has logged in")
            return
        api = None if self.login.pending else APIS.get(begun[0] << 8 | begun[1])
        if api is not None and size > api.most_bytes:
            self.close(f"a frame of {size} bytes: {api.name} has at most {api.most_bytes}")
            return
        self._frame = Frame(size, begun, self._memory, self)
        self._wait_if_starved(self._frame)

    def _drop_frame(self) -> None:
        """Give up a frame that will not be complete."""
        if self._frame is not None:
            self._frame.drop()
            self._frame = None
