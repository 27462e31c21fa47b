"""Batches passed to a StreamAppender over a scripted connection, and their results."""

from typing import TYPE_CHECKING, Any

import hiredis

from headrace.records.accelerator import stamp
from headrace.records.build import build
from headrace.storage.logs.append import StreamAppender
from headrace.storage.logs.leader_log import LeaderLog
from headrace.topics.model import Append

if TYPE_CHECKING:
    from tests.storage.conftest import Wire

STREAM, TERM = "t", 9
NOW = 1_234
OOM = hiredis.ReplyError("OOM command not allowed when used memory > 'maxmemory'.")
SMALLER = hiredis.ReplyError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
ABORTED = hiredis.ReplyError("EXECABORT Transaction discarded because of previous errors.")
MISCONF = hiredis.ReplyError("MISCONF Errors writing to the AOF file")


def batch(span: int = 1, *, time: int = 5, size: int = 10) -> Append:
    return Append(build([(None, b"x" * size, time, ())] * span), span, time)


def opened(wire: "Wire", entries: int = 0, name: str = STREAM) -> LeaderLog:
    """A log as an opening leaves it."""
    log = LeaderLog(name)
    log.term, log.id, log.entries, log.fenced_reason = TERM, b"id", entries, None
    log.connection = wire  # type: ignore[assignment]
    return log


class Sender:
    """Appends batches one after another, and keeps their results."""

    def __init__(self, appender: StreamAppender, log: LeaderLog) -> None:
        self.appender = appender
        self.log = log
        self.told: list[tuple[int, Exception | None]] = []
        """(base offset, answer) in the order of the answers."""
        self.lost: list[Exception] = []

        log.on_lost = self.lost.append
        appender.logs[log.name] = log
        self.next_offset = 0

    def send(self, *batches: Append) -> None:
        for each in batches:
            base = self.next_offset
            stamp(each.batch, base, TERM)
            self.next_offset += each.span

            def done(error: Exception | None, base: int = base) -> None:
                self.told.append((base, error))

            self.appender.place(self.log.name, each, base, done)

    def errors(self) -> list[Any]:
        return [type(error) for _, error in self.told]
