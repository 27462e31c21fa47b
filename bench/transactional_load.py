"""Small transactions, one after the other: how long each takes, from its beginning to its commit.

Like the other loads, it runs in a process of its own (`python -m bench.transactional_load TASK`).
"""

import os
import sys
import threading
import time
from typing import Any

import msgspec

from bench.load import LIMIT_S, Delays, LoadFailed, begin, summed_up


class Transact(msgspec.Struct, frozen=True, kw_only=True):
    """Producers at once. Each ends a transaction before it begins the next one."""

    servers: str
    topic: str
    places: list[list[int]]
    """Of each producer, the partitions that get a record in each of its transactions."""
    transactions: int
    """Of each producer; the first `warm_up` do not count for `Transacted.whole` and `commit`."""
    warm_up: int
    size: int = 100


class Transacted(msgspec.Struct, frozen=True):
    """What they took."""

    rate: float
    """Transactions per second, of all producers."""
    whole: Delays
    """From the beginning of a transaction to the answer to its end."""
    commit: Delays
    """The end alone, when all records had been acknowledged."""


class _Producer(threading.Thread):
    """One producer; a thread, since librdkafka waits without the interpreter's lock."""

    def __init__(self, task: Transact, number: int) -> None:
        from confluent_kafka import Producer  # noqa: PLC0415  # only workers load the library

        super().__init__(daemon=True)
        self._task = task
        self._places = task.places[number]
        self._producer: Any = Producer(
            {
                "bootstrap.servers": task.servers,
                "transactional.id": f"{task.topic}-{os.getpid()}-{number}",
                "linger.ms": 0,
                "log_level": 3,
            }
        )
        self._producer.init_transactions(LIMIT_S)
        self.whole: list[int] = []
        self.commit: list[int] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.error = error

    def _run(self) -> None:
        producer, topic, now, value = self._producer, self._task.topic, time.monotonic_ns, bytes(self._task.size)
        for _ in range(self._task.transactions):
            began = now()
            producer.begin_transaction()
            for partition in self._places:
                producer.produce(topic, value, partition=partition)
            if producer.flush(LIMIT_S):
                raise LoadFailed("a record was not acknowledged")
            sent = now()
            producer.commit_transaction(LIMIT_S)
            ended = now()
            self.whole.append(ended - began)
            self.commit.append(ended - sent)


def transact(task: Transact) -> Transacted:
    """Raises LoadFailed."""
    producers = [_Producer(task, number) for number in range(len(task.places))]
    began = begin()
    for each in producers:
        each.start()
    for each in producers:
        each.join()
        if each.error is not None:
            raise LoadFailed(str(each.error))
    seconds = (time.monotonic_ns() - began) / 1e9
    whole, commit = (
        summed_up([taken for each in producers for taken in getattr(each, name)[task.warm_up :]])
        for name in ("whole", "commit")
    )
    return Transacted(len(producers) * task.transactions / seconds, whole, commit)


if __name__ == "__main__":
    try:
        print(msgspec.json.encode(transact(msgspec.json.decode(sys.argv[1], type=Transact))).decode(), flush=True)
    except LoadFailed as failed:
        raise SystemExit(str(failed)) from None
