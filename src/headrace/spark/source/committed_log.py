"""The committed part of a log in Redis: its end, and the batches to leave out. Blocking and read-only."""

import time
from collections.abc import Sequence
from typing import Any, Final

from headrace.client.errors import StorageUnavailable
from headrace.storage.layout.keys import aborted_of
from headrace.storage.layout.scripts import script
from headrace.storage.layout.transaction_index import (
    ARGUMENTS,
    HEADERS_AT_ONCE,
    TransactionIndex,
    decode_aborted,
    keys,
)
from headrace.topics.committed_batches import HiddenBatches
from headrace.topics.transactions import AbortedTransaction, Transactions

_ATTEMPTS: Final = 20
_WAIT_S: Final = 0.5
"""Seconds between two attempts while a leader rebuilds the stored transactions."""
_ABORTED_AT_ONCE: Final = 1_000


class CommittedLog:
    """The transactions of one log as of one moment. Records before `end` are decided."""

    def __init__(self, redis: Any, stream: str, log_start: int, log_end: int, transactions: Transactions) -> None:
        """Use `look`."""
        transactions.finish(log_end)
        self._redis = redis
        self._stream = stream
        self._transactions = transactions
        self.log_end = log_end
        self.log_start = log_start
        """First offset in Redis."""
        self.end = max(transactions.stable_end(log_end), log_start)
        """Last stable offset."""

    @classmethod
    def look(cls, redis: Any, streams: Sequence[str]) -> list["CommittedLog"]:
        """Look at logs, most of them in one round trip. Raise RedisError, StorageUnavailable."""
        with redis.pipeline(transaction=False) as pipeline:
            for stream in streams:
                pipeline.execute_command("EVAL", script("transactions").text, 4, *keys(stream), *ARGUMENTS)
            replies = pipeline.execute()
        return [cls._of(redis, stream, reply) for stream, reply in zip(streams, replies, strict=True)]

    @classmethod
    def _of(cls, redis: Any, stream: str, reply: Any) -> "CommittedLog":
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_WAIT_S)
                reply = redis.eval(script("transactions").text, 4, *keys(stream), *ARGUMENTS)
            index = TransactionIndex(reply)
            while index.following is not None:
                index.add(redis.eval(script("tail").text, 1, stream, index.following, HEADERS_AT_ONCE))
            found = index.transactions()
            if found is not None:
                return cls(redis, stream, index.log_start, index.log_end, found)
        raise StorageUnavailable(
            f"the stored transactions of {stream} are incomplete, so its committed records are not known. The next "
            "restart of its server rebuilds them"
        )

    def hidden(self, start: int, end: int) -> HiddenBatches:
        """Return which batches of a range before `end` to leave out. Raise RedisError."""
        aborted = self._transactions.aborted
        older = self._older(start, aborted.complete_from, end) if start < aborted.complete_from else []
        return HiddenBatches([*older, *aborted.between(max(start, aborted.complete_from), end)])

    def _older(self, offset: int, before: int, end: int) -> list[AbortedTransaction]:
        found: list[AbortedTransaction] = []
        while True:
            members = self._redis.zrangebyscore(
                aborted_of(self._stream), offset, f"({before}", start=0, num=_ABORTED_AT_ONCE, withscores=True
            )
            part = decode_aborted(members)
            found += [each for each in part if each.first_offset < end]
            if len(part) < _ABORTED_AT_ONCE or part[-1].stable_end >= end:
                return found
            offset = part[-1].marker_offset + 1
