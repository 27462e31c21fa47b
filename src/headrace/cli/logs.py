"""Where the server's log goes: stderr, as text for people or JSON for programs. Standard output is for answers."""

import logging
import sys

import structlog
from structlog.typing import Processor


def configure(level: str, style: str) -> None:
    """Set up structlog, and the standard library's logging for the libraries that use it.

    Args:
        level: debug, info, warning or error.
        style: text, json, or auto: text when stderr is a terminal, else json.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    as_text = style == "text" or (style == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendered: list[Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        if as_text
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    without_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processors=[without_meta, *rendered], foreign_pre_chain=shared)
    )
    # Libraries speak up from warnings on: their information is about themselves.
    logging.basicConfig(handlers=[handler], level=max(threshold, logging.WARNING), force=True)
