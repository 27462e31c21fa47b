"""Report a running archive in a document in the storage, for the server's web console.

The archive does not wait for the storage and continues if it rejects the document.
"""

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import redis

from headrace.lakehouse.status.counters import Figures, Standing
from headrace.metrics.runs import ARCHIVE_RUNS, ArchiveReport, State
from headrace.storage.layout.keys import Keyspace
from headrace.storage.redis.clients import ERRORS, blocking

TOPIC: Final = "{topic}"
"""Placeholder for the topic's name in a table's location."""
_EVERY_S: Final = 5.0
_TIMEOUT_S: Final = 2.0
_MOST_PROBLEM: Final = 500
_MOST_RUNS: Final = 100
"""Maximum number of documents. Above it, those that were not updated for longest are deleted."""


@dataclass(frozen=True)
class Told:
    """Constant properties of an archive."""

    redis: str
    """The storage URL of the server."""
    table: str
    """The location of the tables, as configured."""
    group: str | None
    trigger_s: float


class Teller:
    """Writes an archive's documents, one per topic, from its own thread."""

    def __init__(self, told: Told, figures: Figures, look: Callable[[], Mapping[str, Standing]] | None = None) -> None:
        """Write the documents now, every few seconds, and after each `news`.

        `look` returns the tables' progress if nothing else updates `figures`.
        """
        self._of = told
        self._figures = figures
        self._look = look
        self._started_ms = _now_ms()
        self._wake, self._ended = threading.Event(), threading.Event()
        self._state, self._problem = State.RUNNING, ""
        self._thread = threading.Thread(target=self._run, name="headrace-archive-telling", daemon=True)
        self._thread.start()

    def news(self) -> None:
        """Request an immediate update."""
        self._wake.set()

    def end(self, state: State, problem: str = "") -> None:
        """Write the final state. The wait for the storage is limited."""
        self._state, self._problem = state, problem[:_MOST_PROBLEM]
        self._ended.set()
        self._wake.set()
        self._thread.join(2 * _TIMEOUT_S)

    def _run(self) -> None:
        key = Keyspace().documents(ARCHIVE_RUNS)
        runs: dict[str, ArchiveReport | None] = {}
        connection: redis.Redis | None = None
        with contextlib.ExitStack() as stack:
            while True:
                self._wake.clear()
                ended = self._ended.is_set()
                with contextlib.suppress(*ERRORS):
                    if connection is None:
                        # A cluster's client connects at once.
                        timeouts = {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": _TIMEOUT_S}
                        connection = stack.enter_context(contextlib.closing(blocking(self._of.redis, **timeouts)))
                    for told in self._told():
                        own = hashlib.sha256(f"{told.topic}\n{told.table}".encode()).hexdigest()[:24]
                        if own not in runs:
                            runs[own] = _told_before(connection, key, own)
                        if (before := runs[own]) is not None and not told.goes_on(before):
                            runs[own] = before = None
                        whole = told if before is None else told.behind(before)
                        make_room(connection, key, own)
                        connection.hset(key, own, msgspec.json.encode(whole))
                if ended:
                    return
                self._wake.wait(_EVERY_S)

    def _told(self) -> list[ArchiveReport]:
        if self._look is not None:
            self._figures.stands(self._look())
        return [
            ArchiveReport(
                topic=name,
                table=self._of.table.replace(TOPIC, name),
                group=self._of.group or "",
                host=socket.gethostname(),
                state=self._state,
                problem=self._problem,
                started_ms=self._started_ms,
                told_ms=_now_ms(),
                trigger_s=self._of.trigger_s,
                rows=topic.records,
                bytes=topic.size,
                files=topic.files,
                version=topic.version,
                lag=topic.lag,
                fresh_ms=None if topic.fresh is None else round(topic.fresh * 1000),
                group_failures=topic.group_failures,
                unreadable=topic.unreadable,
                commits=tuple(topic.commits),
                topic_id=topic.topic_id,
                ends=dict(topic.fences),
            )
            for name, topic in self._figures.topics().items()
        ]


def _told_before(connection: "redis.Redis", key: str, own: str) -> ArchiveReport | None:
    found: Any = connection.hget(key, own)
    try:
        return None if found is None else msgspec.json.decode(found, type=ArchiveReport)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _now_ms() -> int:
    return round(time.time() * 1000)


class StillRunning(Exception):
    """A chosen archive still reports. The message is one line."""


def forget(url: str, chosen: Callable[[ArchiveReport], bool]) -> list[ArchiveReport]:
    """Delete the documents of chosen archives, and return them.

    Raise StillRunning, before any is deleted, and the errors of the storage.
    """
    key = Keyspace().documents(ARCHIVE_RUNS)
    timeouts = {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": _TIMEOUT_S}
    with contextlib.closing(blocking(url, **timeouts)) as connection:
        stored: dict[Any, Any] = connection.hgetall(key)
        found = {}
        for name, document in stored.items():
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                report = msgspec.json.decode(document, type=ArchiveReport)
                if chosen(report):
                    found[name] = report
        for report in found.values():
            if report.runs(_now_ms()):
                raise StillRunning(
                    f"the archive of {report.topic!r} into {report.table} reports from {report.host}: stop it first"
                )
        if found:
            connection.hdel(key, *found)
    return list(found.values())


class _When(msgspec.Struct, frozen=True):
    told_ms: int


def make_room(connection: "redis.Redis", key: str, own: str) -> None:
    """Delete the least recently updated documents if there are too many."""
    if int(connection.hlen(key)) < _MOST_RUNS or connection.hexists(key, own):
        return
    told: dict[Any, Any] = connection.hgetall(key)
    known: dict[Any, int] = {}
    for name, document in told.items():
        known[name] = 0
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            known[name] = msgspec.json.decode(document, type=_When).told_ms
    for name in sorted(known, key=lambda each: known[each])[: len(known) - _MOST_RUNS + 1]:
        connection.hdel(key, name)
