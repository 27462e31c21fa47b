"""Where the server's log goes: stderr, as text for people or JSON for programs. Standard output is for answers.

Logging never raises and never waits. Lines are made here and written by a thread (`stderr.py`); what cannot be made or
written is counted. Strangers' names in a line are data: they are cut, and can pass neither for another line nor for
what moves a terminal's cursor.
"""

import atexit
import logging
import os
import sys
import traceback
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Final

import structlog
from structlog.typing import Processor

from headrace.cli.log_repeats import Repeats
from headrace.cli.stderr import StderrWriter

_MOST_CHARACTERS: Final = 1_000
"""Of one value in a line."""
_MOST_OF_TRACEBACK: Final = 10_000
_MOST_FRAMES: Final = 40

Line = MutableMapping[str, Any]


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
