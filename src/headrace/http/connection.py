"""HTTP connection: uvicorn's protocol with timeouts and limits.

Input is parsed in slices, so that other connections are served in between.
"""

import asyncio
from collections import deque
from enum import Enum
from typing import Any, ClassVar, Protocol

import httptools
import structlog
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from headrace.http.error_responses import own_answer, refusal
from headrace.http.shared_pages import DRAIN
from headrace.security.access.principal import ANONYMOUS, Principal
from headrace.security.tls import handshakes

MOST_HEAD = 64 << 10
"""Maximum bytes of a request's headers, and of other input before the client is identified."""
MOST_FIELDS = 200
"""Maximum headers of a request, including trailers; Oracle's SDKs send a dozen."""
HEAD_MS = 10_000
"""Milliseconds for a request's head, from its first byte."""
BODY_MS = 20_000
"""Milliseconds for a body, plus one second for each `BODY_RATE` bytes received."""
BODY_RATE = 64 << 10
IDLE_MS = 75_000
"""Milliseconds between two requests; longer than clients' heartbeat intervals, so that their connections stay open."""
UNTAKEN_MS = 30_000
"""Milliseconds in which a client must take some of a response."""
PRESSED_MS = 10_000
"""Same while others wait for response memory; less than `BODY_RATE` per second counts as nothing."""
ANSWER_MS = 600_000
"""Maximum milliseconds for sending a response."""

CERTIFIED = "headrace.certified"
"""Scope extension with the principal of the client certificate."""

_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
"""Headers that define the end of a body."""
_SLICE = 16 << 10
"""Bytes parsed at a time, small enough for the shortest requests and chunks."""
_SLICES = 2
"""Slices parsed per turn of the event loop."""
_TOO_LONG = f"The head of the request is longer than {MOST_HEAD >> 10} KiB, or has more than {MOST_FIELDS} headers."
_log = structlog.get_logger("headrace.http")


class Phase(Enum):
    """What a connection waits for."""

    IDLE = "a request"
    HEAD = "the rest of a request's head"
    BODY = "the rest of a request's body"
    SERVER = "an answer"


class ConnectionOwner(Protocol):
    """The listener, for its connections."""

    def admit(self, connection: "Connection", host: str) -> str:
        """Accept a connection, or return the reason to close it."""

    def forget(self, connection: "Connection", host: str) -> None:
        """Remove a lost connection."""

    def principal_of(self, transport: asyncio.BaseTransport) -> Principal | None:
        """Return the principal of a client certificate: ANONYMOUS without one, None if no rule matches."""

    def ticks_ms(self) -> int:
        """Return monotonic time."""


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with limits, timeouts and JSON errors."""

    listener: ClassVar[ConnectionOwner]
    """Each listener has a separate subclass."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._host = ""
        self._certified: Principal | None = None
        self._phase = Phase.IDLE
        self._since_ms = 0
        self._body_bytes = 0
        """Received bytes of the current body."""
        self._body_left = 0
        """Remaining bytes of the body, if its length is known."""
        self._framed = False
        """Whether the current request has a body."""
        self._fields = 0
        """Bytes of the current request's headers and trailers."""
        self._count = 0
        """Number of these headers."""
        self._unread = 0
        """Bytes received since the last complete header or target."""
        self._progress = False
        self._wrong: str | None = None
        self._held: deque[memoryview] = deque()
        """Received, unparsed bytes."""
        self._turn_asked = False
        self._stopped = False
        """Whether reading from the transport is paused."""
        self._untaken = 0
        """Unsent response bytes at the last check."""
        self._untaken_ms = 0
        """Time since which the number has not fallen."""
        self._leaving_ms = 0
        """Time since which response bytes are unsent."""
        self._ending_ms = 0
        """Time since which the connection is closed with nothing left in the transport."""
        self._answering: RequestResponseCycle | None = None
        """The current or last answered request; `cycle` is the last parsed one."""
        self._broken: str | None = None
        """Error in the input after unanswered requests; sent after their responses."""

    # Life of the connection

    def connection_made(self, transport: Any) -> None:
        """Accept the client."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        self._writer = _Writer(transport)
        self._host = self.client[0] if self.client else "local"
        self._rest(Phase.IDLE)
        refusal = self.listener.admit(self, self._host)
        if refusal:
            self._refuse(503, "ServiceUnavailable", "The server has as many connections as it takes; try again later.")
            return
        principal = self.listener.principal_of(transport)
        if principal is None:
            self._refuse(403, "NotAllowed", "No rule of ssl.principal.mapping.rules fits the name in the certificate.")
        elif principal != ANONYMOUS:
            self._certified = principal

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the connection's memory."""
        self._held.clear()
        self.pipeline.clear()
        self.listener.forget(self, self._host)
        super().connection_lost(exc)
        # uvicorn notifies only the last parsed request.
        if self._answering is not None:
            self._answering.disconnected = not self._answering.response_complete
            self._answering.message_event.set()

    def _rest(self, phase: Phase) -> None:
        self._phase = phase
        self._since_ms = self.listener.ticks_ms()

    def _drop(self) -> None:
        self.transport.abort()

    def look(self, ticks_ms: int, *, pressed: bool) -> None:
        """Close the connection after a timeout; `pressed`: others wait for response memory."""
        if self.transport.is_closing():
            if not self._check_leaving(ticks_ms, pressed=pressed):
                self._check_ending(ticks_ms)
            return
        if self._check_leaving(ticks_ms, pressed=pressed):
            return
        passed = ticks_ms - self._since_ms
        if self._phase is Phase.IDLE:
            if passed >= IDLE_MS:
                self.transport.close()
        elif self._phase is Phase.HEAD:
            if passed >= HEAD_MS:
                self._time_out("head", HEAD_MS)
        elif self._phase is Phase.BODY:
            if self._stopped:
                # The client is not late while reading is paused.
                self._since_ms = ticks_ms
            elif passed >= BODY_MS + self._body_bytes * 1000 // BODY_RATE:
                self._time_out("body", BODY_MS)

    def _check_leaving(self, ticks_ms: int, *, pressed: bool) -> bool:
        left = self.transport.get_write_buffer_size()
        if not left:
            self._untaken = 0
            return False
        if not self._untaken:
            self._leaving_ms = ticks_ms
        # Single bytes do not count as progress then.
        least = PRESSED_MS // 1000 * BODY_RATE if pressed else 1
        if left > self._untaken or self._untaken - left >= least:
            self._untaken, self._untaken_ms = left, ticks_ms
        waited = ticks_ms - self._untaken_ms
        if waited >= (PRESSED_MS if pressed else UNTAKEN_MS) or ticks_ms - self._leaving_ms >= ANSWER_MS:
            _log.info("connection closed", client=self._host, reason=f"{left} bytes of an answer were not taken")
            self.transport.abort()
        return True

    def _check_ending(self, ticks_ms: int) -> None:
        """Drop a closed connection whose client reads nothing. TLS hides unsent bytes of the socket."""
        if not self._ending_ms:
            self._ending_ms = ticks_ms
        elif ticks_ms - self._ending_ms >= UNTAKEN_MS:
            self.transport.abort()

    def _time_out(self, what: str, limit_ms: int) -> None:
        _log.info("connection closed", client=self._host, reason=f"a request's {what} did not come in time")
        if self.cycle is not None and not self.cycle.response_complete and self.cycle.response_started:
            self.transport.close()
            return
        text = f"The {what} of the request did not come within {limit_ms // 1000} s."
        self._refuse(408, "RequestTimeout", text)

    # Bytes in, a slice at a time

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, or keep them for a later turn."""
        if self._phase is Phase.IDLE:
            self._rest(Phase.HEAD)
        if not self._held and len(data) <= _SLICE and not self._paused:
            self._feed(data)
            return
        self._held.append(memoryview(data))
        if not self._turn_asked:
            self._take_turn()

    @property
    def _paused(self) -> bool:
        return bool(self.pipeline) or self.flow.read_paused or self._broken is not None

    def _take_turn(self) -> None:
        self._turn_asked = False
        slices = 0
        while self._held and not self._paused and not self.transport.is_closing():
            if slices == _SLICES:
                self._ask_for_turn()
                break
            data = self._held.popleft()
            # A body of known length is only copied.
            size = max(_SLICE, min(self._body_left, len(data)))
            if len(data) > size:
                self._held.appendleft(data[size:])
                data = data[:size]
            slices += 1
            self._feed(data)
        if self.transport.is_closing():
            self._held.clear()
        elif self._held or self._paused:
            self._stop()
        else:
            self._start()

    def _ask_for_turn(self) -> None:
        if not self._turn_asked:
            self._turn_asked = True
            self.loop.call_soon(self._take_turn)

    def go_on(self) -> None:
        """Continue to parse, if possible."""
        if self._held:
            self._ask_for_turn()
        elif not self._paused:
            self._start()

    def stop(self) -> None:
        """Stop parsing until the current request is answered."""
        self._stop()

    def _stop(self) -> None:
        if not self._stopped and not self.transport.is_closing():
            self._stopped = True
            self.transport.pause_reading()

    def _start(self) -> None:
        if self._stopped and not self.transport.is_closing():
            self._stopped = False
            self.transport.resume_reading()

    def _feed(self, data: bytes | memoryview) -> None:
        self._progress = False
        # As uvicorn's `data_received`, whose log lines lack the client.
        rest = data
        while rest:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
            except httptools.HttpParserUpgrade as upgrade:
                # Upgrades are not supported.
                rest = rest[upgrade.args[0] :]
                if self._framed:
                    self._read_body()
                continue
            break
        self._unread = 0 if self._progress else self._unread + len(data)
        if self._unread > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response(_TOO_LONG)

    def _read_body(self) -> None:
        framing = (b"%b: %b\r\n" % header for header in self.headers if header[0] in _FRAMING)
        self.parser = httptools.HttpRequestParser(_FromTheBody(self))
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")

    # What the parser finds

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._progress = True
        self._fields = self._count = self._body_bytes = self._body_left = 0
        self._framed = False
        super().on_message_begin()
        self.scope["extensions"] = {
            "headrace.drop": {"drop": self._drop},
            DRAIN: {"drain": self.flow.drain},
        }
        if self._certified is not None:
            self.scope["extensions"][CERTIFIED] = {"principal": self._certified}

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Raises ValueError if there are too many."""
        self._progress = True
        self._fields += len(name) + len(value)
        self._count += 1
        if self._fields > MOST_HEAD or self._count > MOST_FIELDS:
            self._wrong = _TOO_LONG
            raise ValueError(_TOO_LONG)
        if name.lower() in _FRAMING:
            self._framed = value.strip(b"0") != b""
            if value.isdigit() and len(value) < 16:
                self._body_left = int(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the application."""
        self._rest(Phase.BODY)
        super().on_headers_complete()
        self.cycle.transport = self._writer  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._progress = True
        size = len(body)
        self._body_bytes += size
        self._body_left = max(0, self._body_left - size)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request, or only its head if an upgrade request has a body."""
        if self._framed and self.parser.should_upgrade():
            return
        super().on_message_complete()
        if self._phase is Phase.BODY:
            done = self.cycle is None or self.cycle.response_complete
            self._rest(Phase.IDLE if done else Phase.SERVER)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """As uvicorn's, without its timer: the listener closes idle connections."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self._phase is Phase.SERVER and not self.pipeline:
            self._rest(Phase.IDLE)
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self._broken is not None:
            self._refuse(400, "CannotParseRequest", self._broken)
            return
        self.flow.resume_reading()
        self.go_on()

    # Error responses

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP or too large."""
        reason = self._wrong or msg
        _log.warning("malformed request", client=self._host, reason=reason)
        # The error may be in the body of a valid head.
        own = self.cycle is not None and self.cycle.more_body
        if own and self.pipeline:
            self.pipeline.popleft()
        elif self._answering is None or self._answering.response_complete or own:
            self._refuse(400, "CannotParseRequest", reason)
            return
        # Clients would take an error now for the response to an earlier request.
        self._broken = reason

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers, body = own_answer(refusal(code, message))
        head = b"".join(b"%b: %b\r\n" % header for header in (*headers, (b"connection", b"close")))
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + body)
        self.transport.close()


class _FromTheBody:
    """Ignores the events of a head that is parsed a second time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._head = True

    def on_headers_complete(self) -> None:
        if self._head:
            self._head = False
        else:
            self._connection.on_headers_complete()

    def __getattr__(self, name: str) -> Any:
        tell = getattr(self._connection, name)
        return lambda *found: None if self._head else tell(*found)


class _Writer:
    """Drops responses to clients that have left."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.close = transport.close
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            handshakes.write(self._transport, data)


class _Flow(FlowControl):
    """uvicorn's flow control with unparsed bytes."""

    def __init__(self, transport: Any, connection: Connection) -> None:
        super().__init__(transport)
        self._connection = connection

    def pause_reading(self) -> None:
        self.read_paused = True
        self._connection.stop()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._connection.go_on()
