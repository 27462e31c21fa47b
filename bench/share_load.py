"""Share consumers of one new group, which acknowledge everything by their next poll.

Like the other loads, it runs in a process of its own (`python -m bench.share_load TASK`).
"""

import sys
import threading
import time
from typing import Any

import msgspec

from bench.load import LIMIT_S, LoadFailed, Span, begin

_POLL_S = 0.1


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Members that share the records of a topic until each record has come once."""

    servers: str
    topic: str
    """Also the name of the group."""
    members: int
    records: int
    at_once: int
    """Records of a poll, about."""


class Shared(msgspec.Struct, frozen=True):
    """What they took."""

    first_s: float
    """From subscribing to the first record of any member."""
    span: Span
    """From the first record to the last. If all come at once, from subscribing."""


class _Member(threading.Thread):
    """One consumer; a thread, since librdkafka waits without the interpreter's lock."""

    def __init__(self, task: Share, progress: "_Progress") -> None:
        from confluent_kafka import ShareConsumer  # noqa: PLC0415  # only workers load the library

        super().__init__(daemon=True)
        self._task = task
        self._progress = progress
        self._consumer: Any = ShareConsumer(
            {
                "bootstrap.servers": task.servers,
                "group.id": task.topic,
                "max.poll.records": task.at_once,
                "log_level": 3,
            }
        )

    def run(self) -> None:
        try:
            self._consumer.subscribe([self._task.topic])
            while not self._progress.over.is_set():
                found = self._consumer.poll(_POLL_S)
                if not len(found):
                    continue
                if (error := found[0].error()) is not None:
                    raise LoadFailed(str(error))
                self._progress.add(len(found))
            self._consumer.commit_sync(LIMIT_S)
            self._consumer.close()
        except Exception as error:
            self._progress.fail(error)


class _Progress:
    def __init__(self, records: int) -> None:
        self._records = records
        self._lock = threading.Lock()
        self.received = 0
        self.first = self.last = 0
        self.over = threading.Event()
        self.error: Exception | None = None

    def add(self, many: int) -> None:
        now = time.monotonic_ns()
        with self._lock:
            self.first = self.first or now
            self.last = now
            self.received += many
        if self.received >= self._records:
            self.over.set()

    def fail(self, error: Exception) -> None:
        self.error = self.error or error
        self.over.set()


def share(task: Share) -> Shared:
    """Do it. Raises LoadFailed."""
    progress = _Progress(task.records)
    members = [_Member(task, progress) for _ in range(task.members)]
    began = begin()
    for member in members:
        member.start()
    progress.over.wait(LIMIT_S)
    progress.over.set()
    for member in members:
        member.join(LIMIT_S)
    if progress.error is not None:
        raise LoadFailed(str(progress.error))
    if progress.received != task.records:
        raise LoadFailed(f"{progress.received} of {task.records} records arrived")
    from_ns = progress.first if progress.first < progress.last else began
    return Shared((progress.first - began) / 1e9, Span(from_ns, progress.last, progress.received))


def main() -> None:
    try:
        result = share(msgspec.json.decode(sys.argv[1], type=Share))
    except LoadFailed as error:
        raise SystemExit(str(error)) from None
    print(msgspec.json.encode(result).decode(), flush=True)


if __name__ == "__main__":
    main()
