"""Split the bytes of a connection into requests, and decode these.

All connections share a read buffer for small frames. A larger frame gets separate memory, which its batches keep. A
request that must wait is kept here, and reading is paused.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from struct import Struct
from typing import Any, Protocol, cast

from headrace.broker.broker import Broker
from headrace.broker.logins import Logins
from headrace.kafka.server.in_flight_requests import InFlightRequests
from headrace.kafka.server.login import MOST_LOGIN_BYTES, Login
from headrace.kafka.server.memory_pool import SMALL_BYTES, Frame, MemoryPool
from headrace.kafka.server.registry import APIS, Api
from headrace.kafka.server.request_context import RequestContext, ResponseChannel
from headrace.metrics.counters import ListenerCounters
from headrace.protocol.errors import DecodeError
from headrace.protocol.headers import decode_request_header
from headrace.protocol.messages import ApiVersionsRequest
from headrace.security.tls.handshakes import unread

_SIZE = Struct(">i")
_LEAST_BEGUN = 2
"""Bytes of a frame that contain its API key."""
_FEW = 16
"""Elements that every request may have."""

_NOTHING = memoryview(b"")
_HANDSHAKE = 0x1603
"""First bytes of a TLS 1.x handshake record."""


def _misfit(size: int, most: int) -> str:
    if size >> 16 == _HANDSHAKE:
        return "this looks like TLS, and the listener has none: clients of it use PLAINTEXT or SASL_PLAINTEXT"
    return f"a frame of {size} bytes: wanted 1 to {most} (socket.request.max.bytes)"


class Listener(Protocol):
    """State shared by the connections of a listener."""

    logins: Logins | None
    max_request_bytes: int
    memory: MemoryPool
    scratch: bytearray
    """Read buffer for small requests; a request is parsed before the next read."""
    scratch_view: memoryview
    broker: Broker
    name: str
    served: Mapping[int, Api]
    counted: ListenerCounters
    telling: bool
    """Whether each connection and request is logged."""
    gone: set[Any]
    """Closed connections with requests that storage has not answered."""

    def admit(self, connection: Any) -> None:
        """Accept or close a connection."""

    def forget(self, connection: Any) -> None:
        """Remove a lost connection."""

    def end_later(self, connection: Any) -> None:
        """Drop a closed connection if its client reads nothing."""

    def refuse_api_versions(self, context: RequestContext) -> None:
        """See `api_versions.refusal`."""


class Framing(asyncio.BufferedProtocol, ABC):
    """Framing of a connection; subclasses serve the requests."""

    def __init__(self, listener: Listener) -> None:
        self.login = Login(listener.logins)
        self._order = InFlightRequests()
        self._memory = listener.memory
        self._most_bytes = listener.max_request_bytes
        self._scratch = listener.scratch
        self._scratch_view = listener.scratch_view
        self._head = b""  # start of an incomplete frame
        self._frame: Frame | None = None
        self._held = _NOTHING
        """Received bytes that wait, from the start of a request."""
        self._held_frame: memoryview | None = None
        """A waiting request with separate memory, before `_held`."""
        self._held_bytes = 0  # counted as request memory
        self._held_parked = 0  # of these, after a request that may wait for long
        self._closed = False
        self._left = False
        """Whether the client has left: requests without a response are still served."""
        self._read_paused = False
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)

    @abstractmethod
    def _request(self, buffer: memoryview, start: int, stop: int, *, owned: bool, in_turn: bool) -> bool:
        """Serve the request at `start:stop`, or return False if it must wait.

        `owned`: the buffer is not overwritten. `in_turn`: the connection has its turn after a wait.
        """

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Log the reason and close at once."""

    @abstractmethod
    def close(self, reason: str, *, expected: bool = False) -> None:
        """Log the reason and close."""

    @abstractmethod
    def resume(self) -> None:
        """Serve waiting requests or continue reading, if possible."""

    def eof_received(self) -> bool:
        """Close the connection."""
        return False

    def _pause_reading(self) -> None:
        if not self._read_paused and not self._closed:
            self._read_paused = True
            self.transport.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        if self._frame is not None:
            return self._frame.room()
        head = self._head
        if head:
            self._scratch[: len(head)] = head
            return self._scratch_view[len(head) :]
        return self._scratch_view

    def _take_unread(self) -> None:
        while not self._closed and (count := unread(self.transport, self.get_buffer(-1))):
            self.buffer_updated(count)

    def _took(self, nbytes: int) -> bool:
        assert self._frame is not None
        if self._frame.took(nbytes):
            return True
        self._wait_if_starved(self._frame)
        return False

    def _wait_if_starved(self, frame: Frame) -> None:
        if frame.starved:
            self._pause_reading()
            self._memory.wait(self)

    @property
    def _holds(self) -> bool:
        return self._held_frame is not None or len(self._held) > 0

    @property
    def _held_request(self) -> memoryview:
        return self._held[_SIZE.size :] if self._held_frame is None else self._held_frame

    def _take_frame(self) -> None:
        frame, self._frame = self._frame, None
        assert frame is not None
        view = frame.take()
        if not self._request(view, 0, frame.size, owned=True, in_turn=False):
            self._held_frame = view
            self._count_held(frame.size)

    def _take_read(self, nbytes: int) -> None:
        end = len(self._head) + nbytes
        self._head = b""
        self._take_frames(self._scratch_view, 0, end, in_turn=False)

    def _take_held(self) -> None:
        frame = self._held_frame
        if frame is not None:
            if not self._request(frame, 0, len(frame), owned=True, in_turn=True):
                return
            self._held_frame = None
        held, self._held = self._held, _NOTHING
        self._take_frames(held, 0, len(held), in_turn=True)
        if not self._holds:
            self._drop_held()

    def _hold_read(self, nbytes: int) -> None:
        self._held = memoryview(bytearray(self._held) + self._scratch_view[:nbytes])
        self._count_held(nbytes)

    def _count_held(self, size: int) -> None:
        self._pause_reading()
        self._held_bytes += size
        self._memory.add(size)
        if any(APIS[each.api_key].waits_for and not each.done for each in self._order.waiting):
            self._park_held()
        if self._held_parked > SMALL_BYTES and self._memory.many_parked:
            self.abort("sent ahead of requests that wait, while too much does")

    def _park_held(self) -> None:
        self._memory.parked += self._held_bytes - self._held_parked
        self._held_parked = self._held_bytes

    def _drop_held(self) -> None:
        self._left = False
        self._held, self._held_frame = _NOTHING, None
        self._memory.parked -= self._held_parked
        size = self._held_bytes
        self._held_bytes = self._held_parked = 0
        self._memory.free(size)

    def _take_frames(self, buffer: memoryview, position: int, end: int, *, in_turn: bool) -> None:
        while end - position >= 4 and (self._left or not self._closed):
            size: int = _SIZE.unpack_from(buffer, position)[0]
            if not 0 < size <= self._most_bytes:
                self.close(_misfit(size, self._most_bytes))
                return
            if end - position < 4 + min(size, _LEAST_BEGUN):
                break
            start = position + 4
            if end - start < size:
                self._begin_frame(size, buffer[start:end])
                return
            if not self._request(buffer, start, start + size, owned=False, in_turn=in_turn):
                if buffer is self._scratch_view:
                    self._held = memoryview(bytearray(buffer[position:end]))
                    self._count_held(end - position)
                else:
                    self._held = buffer[position:end]
                return
            position = start + size
        if position < end and not self._closed:
            self._head = bytes(buffer[position:end])

    def _begin_frame(self, size: int, begun: memoryview) -> None:
        if self._closed:
            return
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
        if self._frame is not None:
            self._frame.drop()
            self._frame = None


class NotServed(Exception):
    """A request for which the connection is closed, as its client could read no response."""


def decode_request(
    frame: memoryview, channel: ResponseChannel, served: Mapping[int, Api]
) -> tuple[Api, RequestContext, Any]:
    """Return API, context and request, or None for an unsupported version of ApiVersions. Raises NotServed."""
    try:
        key, version, correlation_id, client_id, position = decode_request_header(frame, 0)
        api = served.get(key)
        if api is None:
            raise NotServed(f"API {APIS[key].name if key in APIS else f'key {key}'} is not served")
        context = RequestContext(channel, key, version, correlation_id, client_id, len(frame))
        if version < api.oldest or version > api.newest or version < api.refused_below:
            if key == ApiVersionsRequest.API_KEY:
                return api, context, None
            raise NotServed(f"{api.name} version {version} is not served, only {api.oldest} to {api.newest}")
        most = channel.broker.settings.headrace_request_max_elements
        meant = len(frame) // api.element_bytes + _FEW
        return api, context, api.request.decode(frame, position, version, min(most, meant))
    except DecodeError as error:
        raise NotServed(f"a malformed request: {error}") from None


def client_id_of(frame: memoryview, start: int) -> str:
    """Return the client id of the request at `start`."""
    size = int.from_bytes(frame[start + 8 : start + 10], "big", signed=True)
    return bytes(frame[start + 10 : start + 10 + size]).decode("utf-8", "replace") if size > 0 else ""
