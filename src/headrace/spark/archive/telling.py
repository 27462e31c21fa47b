"""What an archive tells of itself while it runs: a document in the storage, which the server's console shows.

It goes where the archive reads from, so that it needs no address more. Nobody waits for it, and an archive whose
storage does not take it goes on.
"""

import contextlib
import hashlib
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import redis

from headrace.keyspace.keys import Keyspace
from headrace.metrics.archive import KIND, MOST_COMMITS, ArchiveTold, Commit, Freshness, State
from headrace.spark.archive.settings import TOPIC, ArchiveSettings
from headrace.spark.errors import SparkError

if TYPE_CHECKING:
    from headrace.spark.archive.job import Archive
    from headrace.spark.archive.progress import Progress

_EVERY_S: Final = 5.0
_TIMEOUT_S: Final = 2.0
_MOST_PROBLEM: Final = 500
_MOST_RUNS: Final = 100
"""Documents that are kept; when there are more those that were silent for longest go."""


@dataclass
class _Topic:
    """What was counted of one topic."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    unreadable: int = 0
    version: int = 0
    lag: int | None = None
    fresh: Freshness = field(default_factory=Freshness)
    commits: deque[Commit] = field(default_factory=lambda: deque(maxlen=MOST_COMMITS))


class Teller:
    """Tells of one archive, a document for each of its topics, from a thread of its own."""

    def __init__(self, settings: ArchiveSettings) -> None:
        """Begin to count; `start` tells for the first time."""
        self._settings = settings
        self._started_ms = _now_ms()
        self._lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}
        self._group_failures = 0
        self._archive: Archive | None = None
        self._wake, self._ended = threading.Event(), threading.Event()
        self._state, self._problem = State.RUNNING, ""
        self._thread = threading.Thread(target=self._run, name="headrace-archive-telling", daemon=True)

    def start(self, archive: "Archive") -> None:
        """Tell of this archive from now on."""
        self._archive = archive
        self._thread.start()

    def took(self, progress: "Progress") -> None:
        """A batch is done."""
        with self._lock:
            self._group_failures += progress.group_failed
            for name, told in progress.topics.items():
                topic = self._topics.setdefault(name, _Topic())
                topic.rows += told.batch_rows
                topic.bytes += told.batch_bytes
                topic.files += told.batch_files
                topic.unreadable += sum(f" of {name}-" in line for line in progress.unreadable)
                topic.version, topic.lag = told.version, told.lag
                if told.batch_rows:
                    topic.commits.append(Commit(_now_ms(), told.batch_rows, progress.batch_s, told.version))
        self._wake.set()

    def end(self, error: Exception | None, *, stopped: bool) -> None:
        """Tell how it ended, and no more.

        Args:
            error: what ended it; None: nothing did.
            stopped: whether it would have gone on for ever.
        """
        with self._lock:
            self._state = State.FAILED if error is not None else State.STOPPED if stopped else State.DONE
            self._problem = str(error or "")[:_MOST_PROBLEM]
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(2 * _TIMEOUT_S)

    def _run(self) -> None:
        connection = redis.Redis.from_url(
            self._settings.redis, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
        key = Keyspace().documents(KIND)
        with contextlib.closing(connection):
            while True:
                self._wake.clear()
                ended = self._ended.is_set()
                with contextlib.suppress(redis.RedisError):
                    for told in self._told():
                        own = hashlib.sha256(f"{told.topic}\n{told.table}".encode()).hexdigest()[:24]
                        _make_room(connection, key, own)
                        connection.hset(key, own, msgspec.json.encode(told))
                if ended:
                    return
                self._wake.wait(_EVERY_S)

    def _told(self) -> list[ArchiveTold]:
        with contextlib.suppress(SparkError):
            standing = {} if self._archive is None else self._archive.standing()
            with self._lock:
                for name, (archived, end) in standing.items():
                    topic = self._topics.setdefault(name, _Topic())
                    topic.fresh.see(time.time(), archived, end)
                    topic.lag = end - archived
        settings = self._settings
        with self._lock:
            return [
                ArchiveTold(
                    topic=name,
                    table=settings.table.replace(TOPIC, name),
                    group=settings.group or "",
                    host=socket.gethostname(),
                    state=self._state,
                    problem=self._problem,
                    started_ms=self._started_ms,
                    told_ms=_now_ms(),
                    trigger_s=settings.trigger_s,
                    rows=topic.rows,
                    bytes=topic.bytes,
                    files=topic.files,
                    version=topic.version,
                    lag=topic.lag,
                    fresh_ms=None if topic.fresh.seconds is None else round(topic.fresh.seconds * 1000),
                    group_failures=self._group_failures,
                    unreadable=topic.unreadable,
                    commits=tuple(topic.commits),
                )
                for name, topic in self._topics.items()
            ]


def _now_ms() -> int:
    return round(time.time() * 1000)


def _make_room(connection: "redis.Redis", key: str, own: str) -> None:
    """Let those go that were silent for longest, when there are too many."""
    if int(connection.hlen(key)) < _MOST_RUNS or connection.hexists(key, own):
        return
    told: dict[Any, Any] = connection.hgetall(key)
    known: dict[Any, int] = {}
    for name, document in told.items():
        known[name] = 0
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            known[name] = msgspec.json.decode(document, type=ArchiveTold).told_ms
    for name in sorted(known, key=lambda each: known[each])[: len(known) - _MOST_RUNS + 1]:
        connection.hdel(key, name)
