"""Where the server's log goes: stderr, as text for people or JSON for programs. Standard output is for answers.

Logging never raises and never waits. Lines are made here and written by a thread (`StderrWriter`); what cannot be made
or written is counted. Strangers' names in a line are data: they are cut, and can pass neither for another line nor for
what moves a terminal's cursor.

Repeated lines are counted, not written: the same line again within ten seconds, and floods of one event. A flood has a
burst that is written, and then a rate. One client address (of IPv6 one network) has a share of each event, so that it
neither fills the disk nor hides the lines that others cause.
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
"""Lines that may wait for a reader."""


_FLUSH_S: Final = 2.0


class _Asked(threading.Event):
    """Set once everything queued before it has been tried."""


class StderrWriter:
    """Writes lines to a file descriptor from a thread of its own."""

    def __init__(
        self,
        descriptor: int,
        lost_line: Callable[[int, str], str],
        due: Callable[[bool], list[str]] = lambda _ending: [],
        most_lines: int = MOST_LINES,
    ) -> None:
        """Start the thread.

        Args:
            descriptor: where the lines go.
            lost_line: makes the line that tells how many lines were lost, and why.
            due: asked once a second, with False, and at the end, with True, for lines whose time has come.
            most_lines: how many lines may wait; those that come while so many wait are lost.
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
        """Queue one line, without its newline. Never waits and never raises."""
        # A SimpleQueue takes no lock that a signal handler or a finalizer could find taken.
        if self._queue.qsize() < self._most_lines:
            self._queue.put(line)
        else:
            self.lose(_NOT_READ)

    def lose(self, reason: str) -> None:
        """Count a line that could not be made or written."""
        self.lost += 1
        self._reason = reason

    def flush(self, limit_s: float = _FLUSH_S) -> bool:
        """Wait until everything queued so far was tried; False when that takes longer than `limit_s`."""
        asked = _Asked()
        self._queue.put(asked)
        return asked.wait(limit_s)

    def end(self) -> None:
        """Write what waits and what is due, for two seconds at most: the process ends."""
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
        """Write a whole line; why that was not possible. A line that got through in part is ended before the next."""
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
"""For how long a line that was written is only counted when it comes again."""


class Allowance(NamedTuple):
    """Different lines of one event that are written."""

    burst: int
    """At once."""
    refill: int
    """And of a flood that goes on, in each window."""


OF_ONE_EVENT: Final = Allowance(1_000, 100)
OF_ONE_CLIENT: Final = Allowance(500, 20)
_MOST_KNOWN: Final = 4_096
"""Lines that are remembered; while so many are, others are written however often they come, as far as their event and
client have an allowance."""
_MOST_CLIENTS: Final = 1_024
"""Clients that are told apart, of all events together; the others share one allowance of each event."""
_MOST_EVENTS: Final = 1_024
"""The same for events, whose names are the code's: libraries may log anything."""
_OTHERS: Final = "others"
_DIFFERS_ANYWAY: Final = frozenset({"request", "exc_info", "stack_info"})
"""Fields that tell two occurrences of the same thing apart."""


class _Window:
    """What came of one line, or of one event, since the first of it."""

    __slots__ = ("held_back", "last", "line", "method", "passed", "since")

    def __init__(self, method: str, line: Line, since: float) -> None:
        self.method = method
        self.line = line
        self.since = since
        self.passed = 0
        self.held_back = 0
        self.last = since

    def admits(self, most: int, now: float) -> bool:
        """Count one more, and say whether it is among the first `most`."""
        if self.passed < most:
            self.passed += 1
            return True
        self.hold_back(now)
        return False

    def hold_back(self, now: float) -> None:
        """Count one that is not written."""
        self.held_back += 1
        self.last = now


class Repeats:
    """A processor of structlog that holds repeats back, and makes the lines that say how many there were."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing known; `clock` gives seconds, from anywhere, never going back."""
        self._clock = clock
        self._lines: dict[Hashable, _Window] = {}
        # Each has its own bound: lines that a client makes up leave the count of floods in place.
        self._events: dict[Hashable, _Window] = {}
        self._clients: dict[Hashable, _Window] = {}
        self._over: list[tuple[str, Line]] = []
        # Reentrant: a finalizer may log while this thread logs.
        self._lock = threading.RLock()

    def __call__(self, logger: object, method: str, line: Line) -> Line:
        """Let a line pass, or count it and raise DropEvent."""
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
        # Only now: what is held back anyway needs no place.
        if len(self._lines) < _MOST_KNOWN:
            self._lines[method, details] = window = _Window(method, dict(line), now)
            window.passed = 1
        return True

    def _flood(self, method: str, line: Line, now: float) -> _Window:
        """The window of a line's event."""
        name = line.get("event")
        key: tuple[str, str] = (method, repr(name))
        if key not in self._events and len(self._events) >= _MOST_EVENTS:
            key, name = (method, _OTHERS), _OTHERS
        window = self._known(self._events, key, now)
        if window is None:
            window = self._events[key] = _Window(method, {"event": "lines of one event left out", "of": name}, now)
        return window

    def _flood_of_client(self, method: str, line: Line, now: float) -> _Window | None:
        """The window of a line's event and client; None: no client caused it."""
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
        """What was held back and not told yet, of windows that are over, or of all: level, and line with how often."""
        with self._lock:
            now = self._clock()
            for windows in (self._lines, self._events, self._clients):
                for key, window in tuple(windows.items()):
                    if all_of_them or _is_over(window, now):
                        self._end(windows, key, window, now)
            lines, self._over = self._over, []
        return lines

    def _known(self, windows: dict[Hashable, _Window], key: Hashable, now: float) -> _Window | None:
        """The window that is open for this key."""
        window = windows.get(key)
        if window is None or not _is_over(window, now):
            return window
        self._end(windows, key, window, now)
        return windows.get(key)

    def _end(self, windows: dict[Hashable, _Window], key: Hashable, window: _Window, now: float) -> None:
        """End a window. That of a flood goes on, with so many more that may pass, until all of its burst may."""
        if window.held_back:
            line = {name: value for name, value in window.line.items() if name not in _DIFFERS_ANYWAY}
            line |= {"repeated": window.held_back, "within_s": round(now - window.since)}
            # It is written when the time is over: what it tells of may be, too, for long.
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
"""Of one value in a line."""
_MOST_OF_TRACEBACK: Final = 10_000
_MOST_FRAMES: Final = 40


def configure(level: str, style: str, **everywhere: object) -> StderrWriter:
    """Set up structlog, and the standard library's logging for the libraries that use it.

    Args:
        level: debug, info, warning or error.
        style: text, json, or auto: text when stderr is a terminal, else json.
        everywhere: fields of every line that does not say them itself, whoever logs it.

    Returns:
        What writes the lines, and counts those that were lost. Python ends it when the process exits.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    # None when the process was started with its stderr closed: that descriptor may be a socket by now.
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
        # Whoever asks for debug lines wants to see each.
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
    # Libraries speak up from warnings on: their information is about themselves.
    logging.basicConfig(handlers=[_FromLogging()], level=max(threshold, logging.WARNING), force=True)
    # The standard library would print a traceback to the same stderr when a handler fails.
    logging.raiseExceptions = False
    atexit.register(writer.end)
    return writer


class _Lines:
    """What structlog calls with each line, whatever its level."""

    def __init__(self, writer: StderrWriter) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = writer.write


class _FromLogging(logging.Handler):
    """Hands the records of libraries to structlog, so that there is one way out."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        tell = log.error if record.levelno >= logging.ERROR else log.warning
        try:
            text = record.getMessage()
        except Exception:
            # Arguments that do not fit their format are the library's mistake; its words still help.
            text = str(record.msg)
        tell(text, logger=record.name, exc_info=record.exc_info)


def _never_raising(threshold: int, writer: StderrWriter) -> type:
    """A logger whose lines that cannot be made are counted as lost, and raise nothing where they are told."""
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
    """The innermost frames, without the values of variables: there are passwords among them."""
    lines = traceback.format_exception(*exc_info, limit=-_MOST_FRAMES)
    return _shortened("".join(lines).rstrip(), _MOST_OF_TRACEBACK)


def _cut(_logger: object, _method: str, line: Line) -> Line:
    """Bound every value: a topic may be named by a stranger, and an error may quote what he sent."""
    for name, value in line.items():
        if name == "exc_info" or isinstance(value, int | float | None):
            continue
        # Copied: the line is made while it is told, but a repeat of it later.
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
    """Show what moves a cursor, hides text or begins a line as escapes. A traceback keeps its lines, all indented."""
    for name, value in line.items():
        if name == "exception" and isinstance(value, str):
            line[name] = "\n".join("    " + _escaped(each) for each in value.splitlines())
        elif isinstance(value, str) and not value.isprintable():
            line[name] = _escaped(value)
    return line


def _escaped(text: str) -> str:
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


_LOOK_S: Final = 1.0
"""How often `due` is asked."""
_NOT_READ: Final = "stderr is not read"
