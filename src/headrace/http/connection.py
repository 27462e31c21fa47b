"""One HTTP connection: uvicorn's protocol, with an end to everything that a client could do for ever.

A client has time to send a head, then a body; an answer has to be taken; what a request brings is parsed in slices, so
that others are served between them; and requests that are sent ahead wait unparsed.
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
"""Bytes of a request's headers together, and of anything else that is taken in before a stranger can be told apart."""
MOST_FIELDS = 200
"""Headers of a request, trailers too; Oracle's SDKs send a dozen."""
HEAD_MS = 10_000
"""How long a client may take for a request's head, from its first byte on."""
BODY_MS = 20_000
"""How long it may take for a body, and a second more for each `BODY_RATE` bytes that have come."""
BODY_RATE = 64 << 10
IDLE_MS = 75_000
"""How long a connection may rest between two requests: longer than clients' heartbeats, whose connection would else be
closed just when they use it again."""
UNTAKEN_MS = 30_000
"""How long a client may take nothing of an answer."""
PRESSED_MS = 10_000
"""The same while others wait for the memory that answers have: less than `BODY_RATE` a second is nothing then."""
ANSWER_MS = 600_000
"""How long an answer may take to leave, however steadily."""

CERTIFIED = "headrace.certified"
"""The extension of a request's scope that has whom the client's certificate names."""

_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
"""Headers that tell where a body ends."""
_SLICE = 16 << 10
"""Bytes that are parsed at a time: as many as the shortest requests or chunks may fill without holding up others."""
_SLICES = 2
"""Slices that are parsed in one turn of the event loop."""
_TOO_LONG = f"The head of the request is longer than {MOST_HEAD >> 10} KiB, or has more than {MOST_FIELDS} headers."
_log = structlog.get_logger("headrace.http")


class Phase(Enum):
    """What a connection waits for."""

    IDLE = "a request"
    HEAD = "the rest of a request's head"
    BODY = "the rest of a request's body"
    SERVER = "an answer"


class ConnectionOwner(Protocol):
    """What a connection needs of its listener."""

    def admit(self, connection: "Connection", host: str) -> str:
        """Take a connection from an address in; why it is to be closed instead, empty: it is not."""

    def forget(self, connection: "Connection", host: str) -> None:
        """A connection is gone."""

    def principal_of(self, transport: asyncio.BaseTransport) -> Principal | None:
        """Return the principal of a client's certificate; ANONYMOUS without one, None: no rule has a name for it."""

    def ticks_ms(self) -> int:
        """Return the time, for timeouts."""


class Connection(HttpToolsProtocol):
    """uvicorn's own; besides: limits and time-outs, errors in JSON, and a way to drop the connection."""

    listener: ClassVar[ConnectionOwner]
    """Each listener has a class of its own."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._host = ""
        self._certified: Principal | None = None
        self._phase = Phase.IDLE
        self._since_ms = 0
        self._body_bytes = 0
        """Bytes of the present body that have come."""
        self._body_left = 0
        """Bytes of it that are to come, where its head told."""
        self._framed = False
        """Whether the present request has a body."""
        self._fields = 0
        """Bytes of the present request's headers, trailers too."""
        self._count = 0
        """How many they are."""
        self._unread = 0
        """Bytes that have come since the last thing that was whole: of one header, or of the target."""
        self._progress = False
        self._wrong: str | None = None
        self._held: deque[memoryview] = deque()
        """What has been received and not parsed yet."""
        self._turn_asked = False
        self._stopped = False
        """Whether the transport reads no more."""
        self._untaken = 0
        """Bytes of answers that were left when somebody last looked."""
        self._untaken_ms = 0
        """Since when no fewer are left."""
        self._leaving_ms = 0
        """Since when there have been any."""
        self._ending_ms = 0
        """Since when it has been closed with nothing left, as far as the transport tells."""
        self._answering: RequestResponseCycle | None = None
        """The request that is being answered, or was last; `cycle` is the one that was parsed last."""
        self._broken: str | None = None
        """What is wrong with what came behind requests that are not answered yet: said once they are."""

    # Coming and going

    def connection_made(self, transport: Any) -> None:
        """Take the client in, or tell it that there are too many."""
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
        """Free the memory that the connection holds."""
        self._held.clear()
        self.pipeline.clear()
        self.listener.forget(self, self._host)
        super().connection_lost(exc)
        # uvicorn tells only the request that was parsed last: one with others behind it would never hear of it.
        if self._answering is not None:
            self._answering.disconnected = not self._answering.response_complete
            self._answering.message_event.set()

    def _rest(self, phase: Phase) -> None:
        self._phase = phase
        self._since_ms = self.listener.ticks_ms()

    def _drop(self) -> None:
        self.transport.abort()

    def look(self, ticks_ms: int, *, pressed: bool) -> None:
        """Close the connection if its client takes too long for what it is to do.

        Args:
            ticks_ms: the time, never going back.
            pressed: whether others wait for the memory that answers have.
        """
        if self.transport.is_closing():
            # What is left to be sent may never be taken.
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
                # It is not read just now: that is not the client's doing.
                self._since_ms = ticks_ms
            elif passed >= BODY_MS + self._body_bytes * 1000 // BODY_RATE:
                self._time_out("body", BODY_MS)

    def _check_leaving(self, ticks_ms: int, *, pressed: bool) -> bool:
        """Whether an answer is still on its way; the connection ends when it is for too long."""
        left = self.transport.get_write_buffer_size()
        if not left:
            self._untaken = 0
            return False
        if not self._untaken:
            self._leaving_ms = ticks_ms
        # Who takes a byte now and then could hold up all who wait.
        least = PRESSED_MS // 1000 * BODY_RATE if pressed else 1
        if left > self._untaken or self._untaken - left >= least:
            self._untaken, self._untaken_ms = left, ticks_ms
        waited = ticks_ms - self._untaken_ms
        if waited >= (PRESSED_MS if pressed else UNTAKEN_MS) or ticks_ms - self._leaving_ms >= ANSWER_MS:
            _log.info("connection closed", client=self._host, reason=f"{left} bytes of an answer were not taken")
            self.transport.abort()
        return True

    def _check_ending(self, ticks_ms: int) -> None:
        """End a closed connection whose client takes nothing: with TLS nobody tells what has not left the socket."""
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
        """Parse what came, or keep it until there is time."""
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
        """Whether nothing is to be parsed just now: requests wait for their turn, or a body is enough for now."""
        return bool(self.pipeline) or self.flow.read_paused or self._broken is not None

    def _take_turn(self) -> None:
        """Parse some of what was received."""
        self._turn_asked = False
        slices = 0
        while self._held and not self._paused and not self.transport.is_closing():
            if slices == _SLICES:
                self._ask_for_turn()
                break
            data = self._held.popleft()
            # A body of known length is only copied: all of it may be.
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
        """More may be parsed, if there is nothing else in the way."""
        if self._held:
            self._ask_for_turn()
        elif not self._paused:
            self._start()

    def stop(self) -> None:
        """Stop parsing until the request under way is answered."""
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
        # As uvicorn's `data_received`, whose log lines do not say whose connection it was.
        rest = data
        while rest:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
            except httptools.HttpParserUpgrade as upgrade:
                # There is nothing to upgrade to: it is answered as any other request, and so is what comes behind it.
                rest = rest[upgrade.args[0] :]
                if self._framed:
                    self._read_body()
                continue
            break
        self._unread = 0 if self._progress else self._unread + len(data)
        if self._unread > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response(_TOO_LONG)

    def _read_body(self) -> None:
        """Have the body read of a request to upgrade, as Java's HTTP client sends them.

        Its parser takes what follows the head for another protocol's, or for the next request.
        """
        framing = (b"%b: %b\r\n" % header for header in self.headers if header[0] in _FRAMING)
        self.parser = httptools.HttpRequestParser(_FromTheBody(self))
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")

    # What the parser finds

    def on_message_begin(self) -> None:
        """A request begins."""
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
        """One header; raises ValueError when there are too many."""
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
        """The head is there: the application begins."""
        self._rest(Phase.BODY)
        super().on_headers_complete()
        self.cycle.transport = self._writer  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._progress = True
        size = len(body)
        self._body_bytes += size
        self._body_left = max(0, self._body_left - size)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole; of one to upgrade only the head is, if it has a body."""
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
        """As uvicorn has it, but for its timer: the listener looks after connections that rest."""
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

    # Answers of the listener's own

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP, or too much of it."""
        reason = self._wrong or msg
        _log.warning("malformed request", client=self._host, reason=reason)
        # Whether it is in the body of a request whose head was right.
        own = self.cycle is not None and self.cycle.more_body
        if own and self.pipeline:
            self.pipeline.popleft()
        elif self._answering is None or self._answering.response_complete or own:
            self._refuse(400, "CannotParseRequest", reason)
            return
        # Else it would be taken for the answer to a request before it, which may well have been done.
        self._broken = reason

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer in the form of OCI's API, and close."""
        headers, body = own_answer(refusal(code, message))
        head = b"".join(b"%b: %b\r\n" % header for header in (*headers, (b"connection", b"close")))
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + body)
        self.transport.close()


class _FromTheBody:
    """Between a connection and a parser that is fed a head once more: what is in that is not told again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._head = True

    def on_headers_complete(self) -> None:
        """The end of that head, or of another request's."""
        if self._head:
            self._head = False
        else:
            self._connection.on_headers_complete()

    def __getattr__(self, name: str) -> Any:
        tell = getattr(self._connection, name)
        return lambda *found: None if self._head else tell(*found)


class _Writer:
    """A connection's way out, which takes answers to clients that have just gone, and drops them."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.close = transport.close
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """Send, if there is still somebody."""
        if not self._transport.is_closing():
            handshakes.write(self._transport, data)


class _Flow(FlowControl):
    """uvicorn's, for a connection that may have received more than it has parsed."""

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
