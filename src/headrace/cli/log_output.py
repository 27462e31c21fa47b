"""Write the server's log to stderr, as text or JSON.

Logging never raises and never waits: a thread writes the lines, and lost lines are counted. Names from clients are cut
and escaped, so they cannot imitate other lines or control a terminal.

A line repeated within ten seconds is only counted. An event may have a burst and then a rate of lines. Each client
address (or IPv6 network) has a share, so that one client neither fills the disk nor hides other lines.
"""

import atexit
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable, MutableMapping
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, NamedTuple

import structlog
from structlog.typing import Processor

from headrace.text.addresses import holder

MOST_LINES: Final = 4_096
"""Maximum queued lines."""


_FLUSH_S: Final = 2.0


class _Asked(threading.Event):
    """Set after all lines queued before it were tried."""


class StderrWriter:
    """Writes lines to a descriptor from its own thread."""

    def __init__(
        self,
        descriptor: int,
        lost_line: Callable[[int, str], str],
        due: Callable[[bool], list[str]] = lambda _ending: [],
        most_lines: int = MOST_LINES,
    ) -> None:
        """Start the thread.

        `lost_line` makes the line that reports how many lines were lost, and why. `due` returns summaries; it is called
        with False once a second, and with True at the end. Lines above `most_lines` in the queue are lost.
        """
        self.lost = 0
        """Lines lost since the start."""
        self._descriptor = descriptor
        self._lost_line = lost_line
        self._due = due
        self._most_lines = most_lines
        self._queue: SimpleQueue[str | _Asked] = SimpleQueue()
        self._told = 0
        self._reason = ""
        self._torn = False
        self._ending = False
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def write(self, line: str) -> None:
        """Queue one line, without its newline."""
        # A SimpleQueue is safe in signal handlers and finalizers, which could deadlock on a lock.
        if self._queue.qsize() < self._most_lines:
            self._queue.put(line)
        else:
            self.lose(_NOT_READ)

    def lose(self, reason: str) -> None:
        """Count a line that failed."""
        self.lost += 1
        self._reason = reason

    def flush(self, limit_s: float = _FLUSH_S) -> bool:
        """Wait until all queued lines were tried. Return False after `limit_s`."""
        asked = _Asked()
        self._queue.put(asked)
        return asked.wait(limit_s)

    def end(self) -> None:
        """Write queued and due lines, for at most two seconds."""
        self._ending = True
        self.flush()

    def _run(self) -> None:
        while True:
            try:
                item: str | _Asked | None = self._queue.get(timeout=_LOOK_S)
            except Empty:
                item = None
            if isinstance(item, str):
                self._put(item)
                continue
            for line in self._due(self._ending):
                self._put(line)
            self._tell_lost()
            if item is not None:
                item.set()

    def _put(self, line: str) -> None:
        self._tell_lost()
        refused = self._write(line)
        if refused:
            self.lose(refused)

    def _tell_lost(self) -> None:
        lost = self.lost
        if lost > self._told and not self._write(self._lost_line(lost - self._told, self._reason)):
            self._told = lost

    def _write(self, line: str) -> str:
        """Return why a line failed. A partial line is ended before the next one."""
        rest = memoryview((("\n" if self._torn else "") + line + "\n").encode("utf-8", "backslashreplace"))
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
                self._torn = bool(rest)
        except BlockingIOError:
            return _NOT_READ
        except OSError as error:
            return error.strerror or str(error)
        return ""


Line = MutableMapping[str, Any]

WINDOW_S: Final = 10.0
"""Seconds in which a repeated line is only counted."""


class Allowance(NamedTuple):
    """Number of different lines that one event may write."""

    burst: int
    """Lines at once."""
    refill: int
    """Lines per window during a flood."""


OF_ONE_EVENT: Final = Allowance(1_000, 100)
OF_ONE_CLIENT: Final = Allowance(500, 20)
_MOST_KNOWN: Final = 4_096
"""Maximum remembered lines. Above it, other lines are written as often as the allowances of their event and client
permit."""
_MOST_CLIENTS: Final = 1_024
"""Maximum distinguished clients of all events together. Others share one allowance per event."""
_MOST_EVENTS: Final = 1_024
"""The same for events, because libraries may log any."""
_OTHERS: Final = "others"
_DIFFERS_ANYWAY: Final = frozenset({"request", "exc_info", "stack_info"})
"""Fields in which repeats of one line differ."""


class _Window:
    __slots__ = ("held_back", "last", "line", "method", "passed", "since")

    def __init__(self, method: str, line: Line, since: float) -> None:
        self.method = method
        self.line = line
        self.since = since
        self.passed = 0
        self.held_back = 0
        self.last = since

    def admits(self, most: int, now: float) -> bool:
        if self.passed < most:
            self.passed += 1
            return True
        self.hold_back(now)
        return False

    def hold_back(self, now: float) -> None:
        self.held_back += 1
        self.last = now


class Repeats:
    """A structlog processor that holds back repeated lines and makes their summaries."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: dict[Hashable, _Window] = {}
        # Separate limits: lines that a client makes up do not affect flood counts.
        self._events: dict[Hashable, _Window] = {}
        self._clients: dict[Hashable, _Window] = {}
        self._over: list[tuple[str, Line]] = []
        # Reentrant, because a finalizer may log while this thread logs.
        self._lock = threading.RLock()

    def __call__(self, logger: object, method: str, line: Line) -> Line:
        """Return a line, or count it and raise DropEvent."""
        details = tuple((field, repr(value)) for field, value in line.items() if field not in _DIFFERS_ANYWAY)
        with self._lock:
            if not self._passes(method, details, line, self._clock()):
                raise structlog.DropEvent
        return line

    def _passes(self, method: str, details: Hashable, line: Line, now: float) -> bool:
        again = self._known(self._lines, (method, details), now)
        if again is not None:
            return again.admits(1, now)
        event = self._flood(method, line, now)
        client = self._flood_of_client(method, line, now)
        if client is not None and not client.admits(OF_ONE_CLIENT.burst, now):
            return False
        if not event.admits(OF_ONE_EVENT.burst, now):
            return False
        # Only now: lines that are held back need no entry.
        if len(self._lines) < _MOST_KNOWN:
            self._lines[method, details] = window = _Window(method, dict(line), now)
            window.passed = 1
        return True

    def _flood(self, method: str, line: Line, now: float) -> _Window:
        name = line.get("event")
        key: tuple[str, str] = (method, repr(name))
        if key not in self._events and len(self._events) >= _MOST_EVENTS:
            key, name = (method, _OTHERS), _OTHERS
        window = self._known(self._events, key, now)
        if window is None:
            window = self._events[key] = _Window(method, {"event": "lines of one event left out", "of": name}, now)
        return window

    def _flood_of_client(self, method: str, line: Line, now: float) -> _Window | None:
        if not isinstance(client := line.get("client"), str):
            return None
        name, who = line.get("event"), holder(client)
        key = (method, repr(name), who)
        if key not in self._clients and len(self._clients) >= _MOST_CLIENTS:
            who = _OTHERS
            key = (method, repr(name), who)
        window = self._known(self._clients, key, now)
        if window is None:
            left_out = {"event": "lines of one client left out", "of": name, "client": who}
            window = self._clients[key] = _Window(method, left_out, now)
        return window

    def due(self, *, all_of_them: bool = False) -> list[tuple[str, Line]]:
        """Return summaries of windows that have ended, or of all: level, and line with its count."""
        with self._lock:
            now = self._clock()
            for windows in (self._lines, self._events, self._clients):
                for key, window in tuple(windows.items()):
                    if all_of_them or _is_over(window, now):
                        self._end(windows, key, window, now)
            lines, self._over = self._over, []
        return lines

    def _known(self, windows: dict[Hashable, _Window], key: Hashable, now: float) -> _Window | None:
        window = windows.get(key)
        if window is None or not _is_over(window, now):
            return window
        self._end(windows, key, window, now)
        return windows.get(key)

    def _end(self, windows: dict[Hashable, _Window], key: Hashable, window: _Window, now: float) -> None:
        """A flood's window continues, with a growing allowance up to its burst."""
        if window.held_back:
            line = {name: value for name, value in window.line.items() if name not in _DIFFERS_ANYWAY}
            line |= {"repeated": window.held_back, "within_s": round(now - window.since)}
            # The summary follows the last occurrence after an arbitrary time.
            line["last_s_ago"] = round(now - window.last)
            self._over.append((window.method, line))
        refill = {id(self._events): OF_ONE_EVENT.refill, id(self._clients): OF_ONE_CLIENT.refill}.get(id(windows))
        if refill is not None:
            window.passed -= refill * int((now - window.since) // WINDOW_S or 1)
        if refill is None or window.passed <= 0:
            del windows[key]
        else:
            window.since, window.held_back = now, 0


def _is_over(window: _Window, now: float) -> bool:
    return now - window.since >= WINDOW_S


_MOST_CHARACTERS: Final = 1_000
"""Maximum characters of one value in a line."""
_MOST_OF_TRACEBACK: Final = 10_000
_MOST_FRAMES: Final = 40


def configure(level: str, style: str, **everywhere: object) -> StderrWriter:
    """Configure structlog and the standard library's logging. Return the writer, which ends with the process.

    `level` is debug, info, warning or error. `style` is text, json, or auto: text on a terminal, else json.
    `everywhere` are fields of every line.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    # None if stderr was closed at the start: that descriptor may be a socket by now.
    terminal = sys.stderr is not None and sys.stderr.isatty()
    descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC) if sys.stderr is None else sys.stderr.fileno()
    as_text = style == "text" or (style == "auto" and terminal)
    finish: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(_innermost),
        *([_printable, _console(terminal)] if as_text else [structlog.processors.JSONRenderer()]),
    ]
    repeats = Repeats()

    def render(method: str, line: Line) -> str:
        made: Any = line
        for processor in finish:
            made = processor(None, method, made)
        return str(made)

    writer = StderrWriter(
        descriptor,
        lambda lost, reason: render("warning", {"event": "log lines lost", "lines": lost, "reason": reason}),
        lambda ending: [render(method, line) for method, line in repeats.due(all_of_them=ending)],
    )
    structlog.configure(
        # Debug logging shows every line.
        processors=[
            structlog.contextvars.merge_contextvars,
            lambda _logger, _method, line: {**everywhere, **line},
            _cut,
            *([repeats] if threshold > logging.DEBUG else []),
            *finish,
        ],
        wrapper_class=_never_raising(threshold, writer),
        logger_factory=lambda *_names: _Lines(writer),
        cache_logger_on_first_use=True,
    )
    # Libraries log from warnings on.
    logging.basicConfig(handlers=[_FromLogging()], level=max(threshold, logging.WARNING), force=True)
    # Otherwise logging prints a traceback to stderr when a handler fails.
    logging.raiseExceptions = False
    atexit.register(writer.end)
    return writer


class _Lines:
    def __init__(self, writer: StderrWriter) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = writer.write


class _FromLogging(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        tell = log.error if record.levelno >= logging.ERROR else log.warning
        try:
            text = record.getMessage()
        except Exception:
            # Arguments that do not fit their format are the library's mistake.
            text = str(record.msg)
        tell(text, logger=record.name, exc_info=record.exc_info)


def _never_raising(threshold: int, writer: StderrWriter) -> type:
    filtering = structlog.make_filtering_bound_logger(threshold)
    told = structlog.BoundLoggerBase._proxy_to_logger  # documented for wrapper classes

    def tell(self: structlog.BoundLoggerBase, method: str, event: str | None = None, /, **values: Any) -> None:
        # Positional only: a field may have any name.
        try:
            told(self, method, event, **values)
        except Exception as error:
            writer.lose(f"{event}: {type(error).__name__}")

    return type("NeverRaising", (filtering,), {"_proxy_to_logger": tell})


def _console(terminal: bool) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(colors=terminal, exception_formatter=structlog.dev.plain_traceback)


def _innermost(exc_info: tuple[type[BaseException], BaseException, TracebackType | None]) -> str:
    lines = traceback.format_exception(*exc_info, limit=-_MOST_FRAMES)
    return _shortened("".join(lines).rstrip(), _MOST_OF_TRACEBACK)


def _cut(_logger: object, _method: str, line: Line) -> Line:
    for name, value in line.items():
        if name == "exc_info" or isinstance(value, int | float | None):
            continue
        # Copied, because a repeat of this line is formatted later.
        text = value if isinstance(value, str) else repr(value)
        if isinstance(value, list) and len(text) <= _MOST_CHARACTERS and all(isinstance(each, int) for each in value):
            line[name] = [*value]
        elif isinstance(value, dict) and len(text) <= _MOST_CHARACTERS:
            line[name] = {str(key): each if isinstance(each, str | None) else repr(each) for key, each in value.items()}
        else:
            line[name] = _shortened(text, _MOST_CHARACTERS)
    return line


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} ... {len(text)} characters ... {text[-most // 2 :]}"


def _printable(_logger: object, _method: str, line: Line) -> Line:
    for name, value in line.items():
        if name == "exception" and isinstance(value, str):
            line[name] = "\n".join("    " + _escaped(each) for each in value.splitlines())
        elif isinstance(value, str) and not value.isprintable():
            line[name] = _escaped(value)
    return line


def _escaped(text: str) -> str:
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


_LOOK_S: Final = 1.0
"""Seconds between calls of `due`."""
_NOT_READ: Final = "stderr is not read"
