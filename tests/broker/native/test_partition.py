"""The log end offset of a plain stream, and its notifications."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import cast

import msgspec
import pytest
import redis
from structlog.testing import capture_logs
from tests.harness.redis import RedisServer

from headrace.broker.log_ports import InSyncReplicas, NativeStorage
from headrace.broker.native.partition import NativePartition
from headrace.records.build import build
from headrace.storage.layout.keys import producers_of, state_of
from headrace.storage.storage import RedisStorage
from headrace.testing.clock import ManualClock
from headrace.topics import rejected_batches
from headrace.topics.errors import (
    BehindRefused,
    NotEnoughReplicas,
    OffsetsExhausted,
    OutOfOrderSequence,
    StorageFull,
    StorageNotWritten,
    StorageUnavailable,
)
from headrace.topics.model import Append, Appended
from headrace.topics.native import Extent, NativeStream
from headrace.topics.rejected_batches import WAIT_MS, RejectedBatches


class InDoubt:
    """Another primary may have taken over during any wait for replicas."""

    def primary(self, _stream: str) -> int:
        return 0

    def why_too_few(self, _stream: str, _wanted: int) -> str:
        return ""

    def confirm(self, _stream: str, _wanted: int, _wait_ms: int, done: Callable[[Exception], None]) -> None:
        done(StorageUnavailable("another primary may have taken over"))


class TooFew(InDoubt):
    """A primary without a replica."""

    def why_too_few(self, _stream: str, wanted: int) -> str:
        return f"1 of {wanted}"


class Stream:
    """Announces no entry by itself, and answers appends as configured."""

    copies: InSyncReplicas

    def __init__(self, *answers: Appended | Exception) -> None:
        self._answers = list(answers)
        self.hold: Callable[[Callable[[Appended | Exception], None]], None] | None = None
        """Takes appends that are not to be answered yet."""
        self.follows: list[bool] = []

    def append(
        self,
        _place: NativeStream,
        _append: Append,
        done: Callable[[Appended | Exception], None],
        *,
        follows: bool,
        least: int,
    ) -> None:
        """The next answer."""
        self.follows.append(follows)
        if self.hold is not None:
            self.hold(done)
        else:
            done(self._answers.pop(0))

    def watch(self, *_: object) -> None:
        """Nothing comes."""


def test_the_first_report_of_a_new_end_wakes_all_waiters() -> None:
    """A request for the log end offset, for example, may come before the notification of the entry."""
    before, after = (Extent(log_start=0, log_end=end, length=end, added=end) for end in (1, 2))
    partition = NativePartition("t", 0, NativeStream("s", 16), before, cast("NativeStorage", Stream()))
    told: list[int] = []
    partition.watch(told.append)
    partition.learn(before)
    assert told == []
    partition.learn(after)
    assert len(told) == 1


def test_an_answer_that_was_overtaken_does_not_say_that_entries_were_lost() -> None:
    """Redis has answered two reads, and the first one is processed after the second."""
    before, after = (Extent(log_start=0, log_end=end, length=end, added=end, asked=0.0) for end in (1, 2))
    partition = NativePartition("t", 0, NativeStream("s", 16), before, cast("NativeStorage", Stream()))
    partition.learn(after)
    partition.learn(before)
    assert partition.log_end == 2
    partition.learn(msgspec.structs.replace(before, asked=monotonic() + 1))
    assert partition.log_end == 1, "asked for after all that was known: entries are gone"


def told_of(partition: NativePartition, *batches: tuple[int, int], copies: int = 1) -> list[type]:
    """Return the responses to the producer for batches, by epoch and sequence."""
    told: list[type] = []
    for epoch, sequence in batches:
        made = Append(bytearray(61), 1, 0, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
        partition.append(made, lambda result: told.append(type(result)), copies, 1_000)
    return told


def answering(stream: Stream, refusals: RejectedBatches | None = None) -> NativePartition:
    return NativePartition("t", 0, NativeStream("s", 16), Extent(), cast("NativeStorage", stream), refusals)


def test_batches_after_a_refused_one_must_be_retried_after_it() -> None:
    """After OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka sends all again with a new epoch, which would duplicate records."""
    late, lost = OutOfOrderSequence("expected 3, found 4"), StorageUnavailable("lost")
    partition = answering(Stream(lost, late, lost, late, late, Appended(1), late))
    assert told_of(partition, (0, 3), (0, 4), (0, 4), (0, 5), (1, 4), (0, 3), (0, 5)) == [
        StorageUnavailable,
        BehindRefused,
        StorageUnavailable,
        BehindRefused,
        OutOfOrderSequence,
        Appended,
        OutOfOrderSequence,
    ]


@pytest.mark.parametrize("refusal", [StorageFull("OOM"), StorageNotWritten("MISCONF")])
def test_read_only_redis_is_logged_when_it_begins(refusal: Exception) -> None:
    partition = answering(Stream(refusal, refusal, Appended(1), refusal))
    with capture_logs() as lines:
        told_of(partition, (0, 0), (0, 0))
    assert [(line["event"], line["reason"]) for line in lines] == [("records are refused", str(refusal))]
    with capture_logs() as lines:
        told_of(partition, (0, 0), (0, 1))
    assert [line["event"] for line in lines] == ["records are refused"]


def test_exhausted_offsets_are_logged_once() -> None:
    exhausted = OffsetsExhausted("offset 9007199254740991 leaves no room for 1 more below 2^53")
    partition = answering(Stream(exhausted, exhausted, exhausted))
    with capture_logs() as lines:
        # It is no reason to wait for a batch that comes again: nothing can be stored later.
        assert told_of(partition, (0, 0), (0, 1), (0, 1)) == [OffsetsExhausted] * 3
    assert [(line["event"][:15], line["reason"]) for line in lines] == [("no offsets left", str(exhausted))]


def test_a_refused_batch_that_its_producer_has_given_up_is_missing_after_a_while() -> None:
    """The Java client does after `delivery.timeout.ms`, and retries the later batches again and again."""
    clock = ManualClock()
    stream = Stream(Appended(1), StorageUnavailable("gone"), *[OutOfOrderSequence("expected 1")] * 3, Appended(2))
    partition = answering(stream, RejectedBatches(clock.ticks_ms))
    assert told_of(partition, (0, 0), (0, 1), (0, 2)) == [Appended, StorageUnavailable, BehindRefused]
    clock.advance(WAIT_MS - 1)
    assert told_of(partition, (0, 2)) == [BehindRefused]
    clock.advance(1)
    assert told_of(partition, (0, 2), (1, 0)) == [OutOfOrderSequence, Appended]


def test_a_rejected_batch_after_a_lost_acknowledged_one_gets_an_error() -> None:
    """A replica without the batch has taken over. A retriable error would make the producer retry forever."""
    late = OutOfOrderSequence("expected 2, found 3")
    partition = answering(Stream(StorageUnavailable("lost"), late, late, late, late))
    assert told_of(partition, (0, 3), (0, 4), (0, 3), (0, 2), (0, 4)) == [
        StorageUnavailable,
        BehindRefused,
        OutOfOrderSequence,
        OutOfOrderSequence,
        BehindRefused,
    ]


def test_batches_after_one_with_uncertain_replicas_must_be_retried_after_it() -> None:
    stream = Stream(Appended(1), OutOfOrderSequence("expected 3, found 4"))
    stream.copies = cast("InSyncReplicas", InDoubt())
    assert told_of(answering(stream), (0, 3), (0, 4), copies=2) == [StorageUnavailable, BehindRefused]


def test_appends_refused_before_they_are_sent_to_redis_are_counted_too() -> None:
    late = OutOfOrderSequence("expected 3, found 4")
    partition = answering(Stream(late, late, Appended(1)))
    partition.paused = True
    with pytest.raises(StorageUnavailable, match="its storage is being changed"):
        told_of(partition, (0, 3))
    partition.paused = False
    assert told_of(partition, (0, 4), (0, 3), (0, 3)) == [BehindRefused, OutOfOrderSequence, Appended]

    few = Stream(late)
    few.copies = cast("InSyncReplicas", TooFew())
    partition = answering(few)
    with pytest.raises(NotEnoughReplicas):
        told_of(partition, (0, 3), copies=2)
    assert told_of(partition, (0, 4)) == [BehindRefused]


def test_where_clients_are_sent_elsewhere_a_new_producer_begins_with_what_was_refused_here() -> None:
    """Its second batch is on its way here. librdkafka takes an answer to that for one to the first, which is lost."""
    late, lost = OutOfOrderSequence("expected what was sent ahead"), StorageUnavailable("lost")
    stream = Stream(lost, late, Appended(0), late)
    partition = answering(stream)
    assert told_of(partition, (0, 0)) == [StorageUnavailable]
    partition.leader = 2
    assert told_of(partition, (0, 1)) == [BehindRefused]
    assert stream.follows == [False, True]
    assert told_of(partition, (0, 0), (0, 9)) == [Appended, OutOfOrderSequence]


def test_a_producer_that_moved_does_not_block_others_forever() -> None:
    """If acknowledged records were lost there, its producer gets an error in the end."""
    clock = ManualClock()
    late = OutOfOrderSequence("expected 9, found 12")
    partition = answering(Stream(StorageUnavailable("lost"), late, late), RejectedBatches(clock.ticks_ms))
    assert told_of(partition, (0, 3)) == [StorageUnavailable]
    partition.leader = 2
    partition.leader = None
    assert told_of(partition, (0, 12)) == [BehindRefused]
    clock.advance(WAIT_MS)
    assert told_of(partition, (0, 12)) == [OutOfOrderSequence]


def test_a_batch_that_was_under_way_leaves_what_was_refused_behind_it_to_come_again() -> None:
    """It had been sent before the topic's storage was being changed, and its answer came after that."""
    late = OutOfOrderSequence("expected 4, found 5")
    stream = Stream(late, Appended(1), late)
    partition = answering(stream)
    under_way: list[Callable[[Appended | Exception], None]] = []
    stream.hold = under_way.append
    assert told_of(partition, (0, 3)) == []
    partition.paused = True
    with pytest.raises(StorageUnavailable):
        told_of(partition, (0, 4))
    partition.paused, stream.hold = False, None
    under_way[0](Appended(0))
    assert told_of(partition, (0, 5), (0, 4), (0, 6)) == [BehindRefused, Appended, OutOfOrderSequence]


def test_the_first_rejected_batch_counts_in_any_order_of_reports() -> None:
    late = OutOfOrderSequence("expected 3, found 4")
    stream = Stream(late)
    partition = answering(stream)
    under_way: list[Callable[[Appended | Exception], None]] = []
    stream.hold = under_way.append
    assert told_of(partition, (0, 3)) == []
    partition.paused = True
    with pytest.raises(StorageUnavailable):
        told_of(partition, (0, 5))
    partition.paused, stream.hold = False, None
    under_way[0](StorageUnavailable("lost"))
    assert told_of(partition, (0, 4)) == [BehindRefused]


def test_a_batch_that_was_stored_after_all_leaves_those_behind_it_to_come_again() -> None:
    late, lost = OutOfOrderSequence("expected 4, found 5"), StorageUnavailable("lost")
    again = Appended(1, duplicate=True)
    partition = answering(Stream(lost, late, again, late, Appended(2), late))
    assert told_of(partition, (0, 3), (0, 4), (0, 3), (0, 5), (0, 4), (0, 6)) == [
        StorageUnavailable,
        BehindRefused,
        Appended,
        BehindRefused,
        Appended,
        OutOfOrderSequence,
    ]


def test_a_producer_that_redis_does_not_know_does_not_begin_behind_what_was_refused() -> None:
    """Its first batch would be out of order for good where the second one was taken."""
    lost = StorageUnavailable("lost")
    stream = Stream(lost, OutOfOrderSequence("expected what was sent ahead"), lost, Appended(0), Appended(1))
    assert told_of(answering(stream), (0, 0), (0, 1), (0, 0), (0, 0), (0, 1)) == [
        StorageUnavailable,
        BehindRefused,
        StorageUnavailable,
        Appended,
        Appended,
    ]
    assert stream.follows == [False, True, False, False, False]
    stream = Stream(lost, Appended(0))
    told_of(answering(stream), (0, 4), (1, 0))
    assert stream.follows == [False, False], "another epoch begins with 0, whatever was refused"


def test_nor_behind_what_was_refused_and_had_to_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejected_batches, "MOST_REFUSED", 1)
    clock = ManualClock()
    late = OutOfOrderSequence("expected what was sent ahead, found 4")
    stream = Stream(StorageUnavailable("lost"), late, Appended(1), Appended(2))
    partition = answering(stream, RejectedBatches(clock.ticks_ms))
    assert told_of(partition, (0, 3)) == [StorageUnavailable]
    partition.refusals.refuse(Append(bytearray(61), 1, 0, producer_id=8, producer_epoch=0, base_sequence=3))
    assert partition.refusals.first.keys() == {8}
    assert told_of(partition, (0, 4), (0, 0)) == [BehindRefused, Appended]
    clock.advance(WAIT_MS)
    assert told_of(partition, (0, 4)) == [Appended]
    assert stream.follows == [False, True, False, False]


def test_nor_behind_what_is_still_under_way() -> None:
    """It may be refused yet: Redis is full, say, and has room again for the next one."""
    stream = Stream(Appended(1))
    partition = answering(stream)
    under_way: list[Callable[[Appended | Exception], None]] = []
    stream.hold = under_way.append
    told_of(partition, (0, 0), (0, 1), (0, 0), (1, 0), (1, 1))
    assert stream.follows == [False, True, False, False, True]
    for done in under_way:
        done(Appended(0))
    stream.hold = None
    told_of(partition, (1, 2))
    assert stream.follows[-1:] == [False], "all have their answers"


def test_an_answer_that_overtakes_another_leaves_that_one_under_way() -> None:
    """A connection that Redis' failover ends may answer after the next one does."""
    stream = Stream()
    partition = answering(stream)
    under_way: list[Callable[[Appended | Exception], None]] = []
    stream.hold = under_way.append
    told_of(partition, (0, 0), (0, 1))
    under_way.pop()(OutOfOrderSequence("expected 0"))
    told_of(partition, (0, 1))
    assert stream.follows == [False, True, True]
    for done in under_way:
        done(Appended(0))
    told_of(partition, (0, 2))
    assert stream.follows[-1:] == [False]


def test_what_has_its_answer_is_not_ahead_of_anything_any_more() -> None:
    """Not even where something of the producer is always under way, whatever is sent again out of its order."""
    stream = Stream()
    partition = answering(stream)
    under_way: list[Callable[[Appended | Exception], None]] = []
    stream.hold = under_way.append

    def send(*sequences: int) -> list[bool]:
        del stream.follows[:]
        told_of(partition, *((0, sequence) for sequence in sequences))
        return stream.follows

    def answer(batches: int) -> None:
        for _ in range(batches):
            under_way.pop(0)(Appended(0))

    assert send(2**31 - 1, 0, 1) == [False, True, True]
    answer(2)
    assert send(1, 2) == [False, True]
    answer(1)
    assert send(0) == [False], "it comes before all that are under way"
    answer(2)
    assert send(1, 0) == [True, False], "the first of those under way is the last that was sent"
    answer(3)
    assert send(5) == [False], "all have their answers"


async def test_a_producer_whose_state_is_deleted_continues_without_a_pause(
    open_storage: Callable[..., Awaitable[RedisStorage]], any_redis: RedisServer
) -> None:
    raw = redis.Redis.from_url(any_redis.url)
    storage = await open_storage()
    stream = NativeStream("plain", 10)
    partition = NativePartition("t", 0, stream, await storage.native.open(stream), storage.native)
    following, refused, over = 3, 0, asyncio.Event()

    def send(sequence: int) -> None:
        made = build([(None, b"v%d" % sequence, 1, ())], producer_id=7, producer_epoch=0, base_sequence=sequence)
        partition.append(Append(made, 1, 1, 7, 0, sequence), partial(told, sequence))

    def told(sequence: int, result: Appended | Exception) -> None:
        nonlocal following, refused
        if isinstance(result, OutOfOrderSequence) and refused < 20:
            refused += 1
            send(sequence)
        elif following == 20 or not isinstance(result, Appended):
            over.set()
        else:
            if following == 10:
                raw.delete(producers_of(stream.key))
            send(following)
            following += 1

    for sequence in range(3):
        send(sequence)
    await over.wait()
    await storage.native.settle(stream)
    assert 0 < refused < 20, "at 20 it is told so for good"
    assert raw.xlen(stream.key) == 20
    raw.close()
    partition.close()


async def test_of_a_new_producer_the_second_batch_does_not_take_the_place_of_the_first(
    open_storage: Callable[..., Awaitable[RedisStorage]],
) -> None:
    """Then the first one would be out of order however often it comes."""
    storage = await open_storage()
    stream = NativeStream("plain", 10)
    partition = NativePartition("t", 0, stream, await storage.native.open(stream), storage.native)
    told: list[Appended | Exception] = []

    def send(sequence: int) -> None:
        made = build([(None, b"v%d" % sequence, 1, ())], producer_id=7, producer_epoch=0, base_sequence=sequence)
        partition.append(Append(made, 1, 1, 7, 0, sequence), told.append)

    partition.paused = True
    with pytest.raises(StorageUnavailable):
        send(0)
    partition.paused = False
    for sequence in (1, 0, 1):
        send(sequence)
    await storage.ping()
    assert [type(each) for each in told] == [BehindRefused, Appended, Appended]
    partition.close()


async def test_offsets_after_a_loss_follow_all_acknowledged_ones(
    open_storage: Callable[..., Awaitable[RedisStorage]], any_redis: RedisServer
) -> None:
    """Ids that are ahead of the clock go back with Redis, and readers would be past the records that follow."""
    storage = await open_storage()
    stream = NativeStream("plain", 0)
    keys = (stream.key, state_of(stream.key))
    partition = NativePartition("t", 0, stream, await storage.native.open(stream), storage.native)
    answers: asyncio.Queue[Appended | Exception] = asyncio.Queue()

    async def put(count: int) -> int:
        made = build((None, b"v", 1, ()) for _ in range(count))
        partition.append(Append(made, count, 1), answers.put_nowait)
        result = await answers.get()
        assert isinstance(result, Appended)
        return result.base_offset

    await put(10_000)
    with redis.Redis.from_url(any_redis.url) as raw:
        dumped = [raw.dump(key) for key in keys]
        end = await put(10_000) + 10_000
        for key, dump in zip(keys, dumped, strict=True):
            raw.restore(key, 0, dump, replace=True)
    assert await put(1) == end
    partition.close()
