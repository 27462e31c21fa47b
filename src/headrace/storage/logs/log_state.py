"""Recover the producers and transactions of a log: the last snapshot, and the batches after it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Container

import structlog

from headrace.records.batch import BatchHeader
from headrace.records.errors import BatchError
from headrace.records.markers import parse_marker
from headrace.storage.layout import entries, partition
from headrace.storage.layout.keys import aborted_of, producers_of, transactions_of
from headrace.storage.layout.transaction_index import HEADERS_AT_ONCE, apply, headers
from headrace.storage.redis.connection import Connection
from headrace.storage.redis.replies import checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.producer_state import ProducerStateEntry
from headrace.topics.transactions import (
    MOST_ABORTED,
    MOST_UNRELATED,
    AbortedTotal,
    AbortedTransaction,
    AbortedTransactions,
    Producers,
    TransactionChanges,
    Transactions,
    Unstable,
)

_AT_ONCE = 1_000
"""Values that a recovery reads in one turn of the event loop."""
_log = structlog.get_logger("headrace.storage.logs")


class LogState:
    """The state next to a log that is being opened, or that another server leads."""

    def __init__(self, scripts: Scripts, stream: str, epochs: LeaderEpochs, now_ms: Callable[[], int]) -> None:
        """`now_ms` is the time of what is recovered."""
        self._scripts = scripts
        self._stream = stream
        self._epochs = epochs
        self._now_ms = now_ms

    async def stored_producers(self, expiry_ms: int) -> tuple[dict[int, ProducerStateEntry], set[int]]:
        """Return the snapshot's producers, and the ids of expired ones. Raises StorageUnavailable."""
        stream = self._stream
        stored = checked(await self._scripts.shards.at(stream).call("HGETALL", producers_of(stream)))
        least = self._now_ms() - expiry_ms
        producers: dict[int, ProducerStateEntry] = {}
        expired: set[int] = set()
        for number, (name, value) in enumerate(zip(stored[::2], stored[1::2], strict=True)):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                producer_id, known = int(name), partition.decode_producer(value)
            except (ValueError, TypeError):
                _log.error("a stored producer state cannot be read; it is reset", stream=stream, producer=name[:20])
                continue
            if known.last_use_ms >= least:
                producers[producer_id] = known
            else:
                expired.add(producer_id)
        return producers, expired

    async def stored_transactions(self, total: AbortedTotal) -> Transactions | None:
        """Return the snapshot's transactions; None if they are lost. Raises StorageUnavailable."""
        stream, connection = self._stream, self._scripts.shards.at(self._stream)
        stored = checked(await connection.call("HGETALL", transactions_of(stream)))
        members = checked(await connection.call("ZREVRANGE", aborted_of(stream), 0, MOST_ABORTED - 1, "WITHSCORES"))
        count = checked(await connection.call("ZCARD", aborted_of(stream)))
        fields = dict(zip(stored[::2], stored[1::2], strict=True))
        if fields.pop(partition.ABORTED_COUNT, None) != b"%d" % count:
            return None
        try:
            unstable: list[Unstable] = [partition.decode_unstable(*each) for each in fields.items()]
            aborted = await _decoded(members)
        except (ValueError, TypeError):
            _log.error("the stored transactions of a log cannot be read", stream=stream)
            return None
        aborted.reverse()
        complete_from = aborted[0].marker_offset if len(aborted) < count else 0
        return Transactions(unstable, AbortedTransactions(aborted, complete_from, total), used=True)

    async def replay(
        self,
        offset: int,
        log_end: int,
        transactions: Transactions | None,
        producers: dict[int, ProducerStateEntry] | None = None,
    ) -> set[int]:
        """Update the state by the batches of the log from an offset on. Return the ids of changed producers."""
        changed: set[int] = set()
        now_ms = self._now_ms()
        async for header, start in self._headers(offset, log_end):
            if header.producer_id < 0 or header.base_offset < offset:
                continue
            if transactions is not None:
                apply(transactions, header, start, now_ms)
            if header.is_control:
                self._end(header, start, producers, now_ms)
                changed.add(header.producer_id)
                continue
            if producers is not None and _take(producers, header, now_ms):
                changed.add(header.producer_id)
        return changed

    def _end(
        self,
        header: BatchHeader,
        start: bytes,
        producers: dict[int, ProducerStateEntry] | None,
        now_ms: int,
    ) -> None:
        try:
            marker = parse_marker(start)
        except BatchError as error:
            _log.error("a control batch is skipped", stream=self._stream, offset=header.base_offset, reason=str(error))
            return
        if producers is not None:
            known = producers.get(marker.producer_id)
            if known is None:
                known = producers[marker.producer_id] = ProducerStateEntry(marker.producer_epoch)
            if not known.batches or known.batches[0].base_offset < header.base_offset:
                known.end(marker.producer_epoch, marker.number, now_ms)

    async def _headers(self, offset: int, log_end: int) -> AsyncIterator[tuple[BatchHeader, bytes]]:
        stream = self._stream
        while offset < log_end:
            first = entries.range_start(self._epochs, offset)
            found = await self._scripts.run("tail", [stream], first, HEADERS_AT_ONCE)
            expected = offset
            for entry_id, header, start in headers(found):
                if header.base_offset > expected:
                    _log.error(
                        "records in the middle of a log are missing", stream=stream, offset=expected,
                        records=header.base_offset - expected,
                    )  # fmt: skip
                yield header, start
                expected = entries.next_offset_of(entry_id)
            if not found:
                return
            offset = max(expected, entries.next_offset_of(found[-2]))


def _take(producers: dict[int, ProducerStateEntry], header: BatchHeader, now_ms: int) -> bool:
    known = producers.get(header.producer_id)
    if known is None:
        known = producers[header.producer_id] = ProducerStateEntry(header.producer_epoch)
    elif (known.batches and known.batches[0].base_offset >= header.base_offset) or header.producer_epoch < known.epoch:
        return False  # the snapshot already includes it
    known.take(header.producer_epoch, header.base_sequence, header.span, header.base_offset, now_ms)
    return True


async def _decoded(members: list[bytes]) -> list[AbortedTransaction]:
    found: list[AbortedTransaction] = []
    for place in range(0, len(members), 2 * _AT_ONCE):
        part = members[place : place + 2 * _AT_ONCE]
        found += [partition.decode_aborted(*each) for each in zip(part[::2], part[1::2], strict=True)]
        await asyncio.sleep(0)
    return found


async def aborted_between(
    connection: Connection, stream: str, offset: int, before: int, end: int, producers: Producers | None = None
) -> list[AbortedTransaction]:
    """See `broker.log_ports.LogStorage.aborted`. Raises StorageUnavailable."""
    found: list[AbortedTransaction] = []
    wanted: Container[int] | None = None
    bounds = ("BYSCORE", "LIMIT", 0, _AT_ONCE, "WITHSCORES")
    while True:
        reply = await connection.call("ZRANGE", aborted_of(stream), offset, f"({before}", *bounds)
        part = await _decoded(checked(reply))
        found += [each for each in part if each.first_offset < end and (wanted is None or each.producer_id in wanted)]
        if wanted is None and producers is not None and len(found) > MOST_UNRELATED:
            # A log may have a million of them, of which a reader needs a few.
            wanted = producers()
            found = [each for each in found if each.producer_id in wanted]
        if len(part) < _AT_ONCE or part[-1].stable_end >= end:
            return found
        offset = part[-1].marker_offset + 1


def snapshot_arguments(changes: TransactionChanges) -> list[str | bytes | int]:
    """Return the arguments of the script `snapshot` for the changes of transactions."""
    arguments: list[str | bytes | int] = [
        "rebuilt" if changes.rebuilt else "", changes.first_aborted, len(changes.unstable), len(changes.aborted)
    ]  # fmt: skip
    for first, unstable in changes.unstable.items():
        arguments += [first, b"" if unstable is None else partition.encode_unstable(unstable)]
    for aborted in changes.aborted:
        arguments += [aborted.marker_offset, partition.encode_aborted(aborted)]
    return arguments
