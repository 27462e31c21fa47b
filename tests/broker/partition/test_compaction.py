"""Passes of the cleaner over a log in a real Redis, which end early and go on, and what readers find in between."""

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
from tests.harness.owning import STREAM, Owner
from tests.harness.redis import RedisServer
from tests.harness.waiting import until

from headrace.broker.partition import offset_lookup
from headrace.broker.partition.compaction import Compaction, Ended
from headrace.broker.partition.participant import end_transaction
from headrace.broker.partition.source import COMMITTED
from headrace.broker.partition.timestamps import Searcher
from headrace.broker.runtime.decompression import Decompression
from headrace.records.build import build
from headrace.records.markers import Marker
from headrace.records.walk import records
from headrace.storage.layout.keys import clean_of
from headrace.topics.config import CompactionConfig
from headrace.topics.errors import OffsetOutOfRange, StorageUnavailable
from headrace.topics.model import Append, Appended
from headrace.topics.transactions import AbortedTransaction, AbortedTransactions

NOW = 1_800_000_000_000
DAY = 86_400_000
Contents = dict[int, tuple[bytes, bytes | None, int]]
"""Offset -> key, value and time."""


class Here:
    """Runs the work of a pass at once."""

    def __init__(self) -> None:
        self.size = 0

    async def run(self, work: Callable[[], Any]) -> Any:
        return work()

    async def spent(self, size: int) -> None:
        self.size += size


class Log:
    """A log with what was sent to it."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.sent: Contents = {}

    async def send(self, *pairs: tuple[bytes, bytes | None], time: int = NOW, producer: int = -1, **more: Any) -> int:
        made = build([(key, value, time, ()) for key, value in pairs], producer_id=producer, **more)
        sequence, epoch = more.get("base_sequence", -1), more.get("producer_epoch", -1)
        transaction = "id" if more.get("transactional") else None
        answer = await self.owner.append(Append(made, len(pairs), time, producer, epoch, sequence, transaction))
        assert isinstance(answer, Appended), answer
        for offset, pair in enumerate(pairs, answer.base_offset):
            self.sent[offset] = (*pair, time)
        return answer.base_offset

    async def clean(
        self,
        config: CompactionConfig | None = None,
        *,
        now_ms: int = NOW,
        map_bytes: int = 1 << 20,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Compaction:
        config = config or CompactionConfig()
        logs = self.owner.storage.logs
        made = Compaction(self.owner.partition, logs, config, now_ms, map_bytes, Here(), is_wanted)
        await made.run()
        return made

    async def read(self) -> Contents:
        """All records in storage, as a reader finds them."""
        logs, partition = self.owner.storage.logs, self.owner.partition
        offset, found = partition.local_start, {}
        while offset < partition.log_end and (batches := await logs.read(STREAM, offset, 7)):
            for each in batches:
                assert each.base_offset >= offset or offset == partition.local_start
                for one in records(bytes(each.batch), each.base_offset):
                    if one.key is not None and len(one.key) != 4:  # no marker
                        value = None if one.value is None else bytes(one.value)
                        found[one.offset] = bytes(one.key), value, one.timestamp
            offset = batches[-1].next_offset
        return found

    def last(self, sent: Contents | None = None) -> dict[bytes, int]:
        """Key -> offset of its last record."""
        return {key: offset for offset, (key, _, _) in sorted((self.sent if sent is None else sent).items())}

    async def check(self, *, gone: frozenset[int] = frozenset()) -> Contents:
        """Check that no last record is missing, nor changed, except tombstones that are `gone`."""
        found = await self.read()
        assert all(self.sent[offset] == one for offset, one in found.items())
        assert set(self.last().values()) - gone <= found.keys()
        end = self.owner.storage.logs.segments.cleaned(STREAM).end
        for offset in found.keys() - self.last().values():
            # A later record of its key follows, which may not have been seen by a pass.
            assert offset >= end or any(
                key == self.sent[offset][0] and one >= end for one, (key, _, _) in self.sent.items()
            )
        return found


@pytest.fixture
def link(any_redis: RedisServer) -> Any:
    with redis.Redis.from_url(any_redis.url) as found:
        found.flushall()
        yield found


@pytest.fixture
async def start(link: Any, any_redis: RedisServer) -> AsyncIterator[Callable[..., Any]]:
    owners: list[Owner] = []

    async def make(view: int = 1) -> Owner:
        owners.append(await Owner.start(any_redis.url, view))
        return owners[-1]

    yield make
    for owner in owners:
        await owner.crash()


@pytest.fixture
async def log(start: Callable[..., Any]) -> Log:
    return Log(await start())


async def fill(log: Log, chance: random.Random, batches: int, keys: int = 10, **more: Any) -> None:
    for _ in range(batches):
        await log.send(
            *(
                (
                    b"key %d" % chance.randrange(keys),
                    None if chance.random() < 0.2 else b"v%d" % chance.randrange(10**6),
                )
                for _ in range(chance.randrange(1, 5))
            ),
            **more,
        )


@pytest.mark.parametrize("seed", range(3))
async def test_the_last_record_of_each_key_stays(log: Log, link: Any, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        await fill(log, chance, 60)
        await log.clean()
        found = await log.check()
        # Those of the keys, and of the last batch.
        assert len(found) <= 10 + 2 * 4
        assert link.xlen(STREAM) == 1
        segments = log.owner.storage.logs.segments.cleaned(STREAM).segments
        assert [each.number for each in segments] == sorted(
            int(key.rpartition(b":")[2]) for key in link.scan_iter(f"{clean_of(STREAM)}:*")
        )
    assert log.owner.partition.log_end == max(log.sent) + 1


async def test_a_pass_without_new_records_changes_nothing(log: Log, link: Any) -> None:
    await fill(log, random.Random(1), 30)
    await log.clean()
    before = {key: link.dump(key) for key in link.scan_iter()}
    await log.clean()
    assert {key: link.dump(key) for key in link.scan_iter()} == before


async def test_a_deleted_key_goes_a_day_after_its_first_pass(log: Log) -> None:
    await log.send((b"a", b"1"), (b"b", b"1"))
    gone = await log.send((b"a", None), time=NOW - 5 * DAY)
    await log.send((b"c", b"1"))
    report = (await log.clean()).report
    assert report.due_ms == NOW + DAY
    assert set(await log.check()) == {1, 2, 3}
    await log.clean(now_ms=NOW + DAY - 1)
    assert set(await log.check()) == {1, 2, 3}
    await log.clean(now_ms=NOW + DAY)
    assert set(await log.check(gone=frozenset({gone}))) == {1, 3}


async def test_young_records_are_not_cleaned_yet(log: Log) -> None:
    for number in range(6):
        await log.send((b"a", b"%d" % number), time=NOW + number * 1_000)
    config = CompactionConfig(min_compaction_lag_ms=1_000)
    await log.clean(config, now_ms=NOW + 3_000)
    assert set(await log.check()) == {2, 3, 4, 5}


async def test_records_that_arrive_during_a_pass_do_not_end_it(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.send((b"a", b"1"), (b"b", b"1"))
    await log.send((b"a", b"2"))
    settle = log.owner.storage.logs.settle

    async def busy(stream: str) -> None:
        for number in range(3):
            await log.send((b"b", b"%d" % number))
        await settle(stream)

    with monkeypatch.context() as patched:
        patched.setattr(log.owner.storage.logs, "settle", busy)
        assert (await log.clean()).report.end == 2
    assert (await log.clean()).report.end == 5
    assert set(await log.check()) == {2, 4, 5}


async def test_a_small_map_needs_several_passes(log: Log) -> None:
    for number in range(300):
        await log.send((b"key %d" % (number % 150), b"%d" % number))
    ends = []
    for _ in range(9):
        made = await log.clean(map_bytes=1_000)
        ends.append(made.report.end)
        await log.check()
    assert ends == sorted(ends)
    assert ends[0] < 60
    while (await log.clean(map_bytes=1_000)).report.is_partial:
        pass
    assert log.owner.storage.logs.segments.cleaned(STREAM).end == 299


async def test_a_deleted_key_stays_deleted_if_its_batch_has_more_keys_than_the_map(log: Log) -> None:
    keys = [b"key %d" % number for number in range(20)]
    await log.send(*((key, b"old") for key in keys))
    await log.send((b"plain", b"x"))
    await log.clean()
    await log.send(*((key, None) for key in keys))
    await log.send((b"plain", b"x"))
    while (await log.clean(map_bytes=120)).report.is_partial:
        pass
    await log.send((b"plain", b"y"))
    await log.send((b"plain", b"y"))
    await log.clean(now_ms=NOW + DAY, map_bytes=120)
    found = await log.read()
    last = {key: value for _, (key, value, _) in sorted(found.items())}
    assert [key for key in keys if last.get(key) is not None] == []


@pytest.mark.parametrize("seed", range(3))
async def test_records_of_aborted_transactions_go_and_others_stay(log: Log, start: Any, seed: int) -> None:
    chance = random.Random(seed)
    log.owner.partition.admission.admit = lambda topic, index, append, done: done(append.base_sequence)
    sequences, opened = dict.fromkeys((1, 2, 3), 0), dict[int, list[int]]()
    aborted: set[int] = set()
    ended: list[Exception | None] = []
    for _ in range(120):
        producer = chance.choice((1, 2, 3))
        if chance.random() < 0.4 and producer in opened:
            commit = chance.random() < 0.5
            before = len(ended)
            end_transaction(log.owner.partition, Marker(producer, 0, commit, sequences[producer] - 1), ended.append)
            await until(partial(_longer, ended, before))
            offsets = opened.pop(producer)
            aborted.update(() if commit else offsets)
        else:
            pair = (b"key %d" % chance.randrange(5), b"%d" % chance.randrange(10**6))
            offset = await log.send(
                pair, producer=producer, producer_epoch=0, base_sequence=sequences[producer], transactional=True
            )
            sequences[producer] += 1
            opened.setdefault(producer, []).append(offset)
        if chance.random() < 0.1:
            await log.clean()
    await log.send((b"plain", b"x"))
    await log.clean()
    found = await log.read()
    stable = log.owner.partition.visible_end(COMMITTED)
    undecided = {offset for each in opened.values() for offset in each}
    committed = {offset: one for offset, one in log.sent.items() if offset < stable and offset not in aborted}
    assert {offset for offset in log.last(committed).values() if offset not in undecided} <= found.keys()
    end = log.owner.storage.logs.segments.cleaned(STREAM).end
    assert not {offset for offset in found if offset < end} & aborted
    assert all(log.sent[offset] == one for offset, one in found.items())
    following = await start(2)
    assert following.partition.visible_end(COMMITTED) == stable


async def test_aborted_transactions_of_other_producers_take_no_time(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = log.owner.partition
    partition.admission.admit = lambda topic, index, append, done: done(append.base_sequence)
    ended: list[Exception | None] = []
    for number, commit in enumerate((False, True) * 100):
        key = b"aborted" if not commit else b"key %d" % number
        await log.send((key, b"1"), producer=1, producer_epoch=0, base_sequence=number, transactional=True)
        end_transaction(partition, Marker(1, 0, commit, number), ended.append)
        await until(partial(_longer, ended, number))
    await log.send((b"plain", b"x"))
    await partition.save_producers()
    assert partition.transactions is not None
    for number in range(20_000):
        # They all overlap with the ones above.
        partition.transactions.aborted.add(AbortedTransaction(2 + number, 0, 10**6 + number, 0))
    found: list[int] = []
    between = AbortedTransactions.between

    def counted(*arguments: Any) -> list[AbortedTransaction]:
        result = between(*arguments)
        found.append(len(result))
        return result

    monkeypatch.setattr(AbortedTransactions, "between", counted)
    await log.clean()
    assert max(found) <= 100
    read = await log.read()
    assert {key for key, _, _ in read.values()} == {b"plain", *(b"key %d" % number for number in range(1, 200, 2))}


@pytest.mark.parametrize("name", ["advance", "write", "swap"])
@pytest.mark.parametrize("happens", [False, True], ids=["before", "after"])
async def test_a_pass_that_ends_anywhere_leaves_a_whole_log(
    log: Log, start: Any, monkeypatch: pytest.MonkeyPatch, link: Any, name: str, happens: bool
) -> None:
    chance = random.Random(7)
    monkeypatch.setattr("headrace.broker.partition.compaction.PIECE_BYTES", 400)
    monkeypatch.setattr("headrace.broker.partition.compaction.SEGMENT_BYTES", 1_500)
    for view in range(2, 12):
        await fill(log, chance, 40, keys=40)
        segments = log.owner.storage.logs.segments
        real, left = getattr(segments, name), [chance.randrange(4)]

        async def fails(*arguments: Any, real: Any = real, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] >= 0 or happens:
                await real(*arguments)
            if left[0] < 0:
                raise StorageUnavailable("killed")

        close = segments.close

        async def closes(stream: str, close: Any = close, left: list[int] = left) -> None:
            if left[0] < 0:
                raise StorageUnavailable("killed")
            await close(stream)

        with monkeypatch.context() as killed:
            killed.setattr(segments, name, fails)
            killed.setattr(segments, "close", closes)
            with contextlib.suppress(StorageUnavailable):
                await log.clean()
        await log.check()
        await log.owner.crash()
        log.owner = await start(view)
        await log.check()
    await log.clean()
    await log.check()
    listed = {each.number for each in log.owner.storage.logs.segments.cleaned(STREAM).segments}
    assert {int(key.rpartition(b":")[2]) for key in link.scan_iter(f"{clean_of(STREAM)}:*")} == listed


async def test_a_pass_that_is_not_wanted_any_more_ends(log: Log, link: Any) -> None:
    chance = random.Random(3)
    await fill(log, chance, 60)
    await log.clean()
    await fill(log, chance, 60)
    for left in range(12):
        count = iter(range(left))
        with contextlib.suppress(Ended):
            await log.clean(is_wanted=partial(_counts_down, count))
        await log.check()
        assert not link.hexists(clean_of(STREAM), "writing")


def _longer(found: list[Any], count: int) -> bool:
    return len(found) > count


def _counts_down(left: Iterator[int]) -> bool:
    return next(left, None) is not None


async def test_a_log_start_that_moves_during_a_pass_ends_it(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(4)
    await fill(log, chance, 80)
    await log.clean()
    await fill(log, chance, 80)
    partition, segments = log.owner.partition, log.owner.storage.logs.segments
    real = segments.advance

    async def late(*arguments: Any) -> None:
        await partition.delete_before(partition.log_end - 3)
        await real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(segments, "advance", late)
        with pytest.raises(OffsetOutOfRange):
            await log.clean()
    assert min(await log.read()) >= partition.log_start - 3
    await log.clean()
    assert log.last()[log.sent[max(log.sent)][0]] == max(log.sent)


async def test_an_earlier_leader_cleans_nothing(log: Log, start: Any, link: Any) -> None:
    await fill(log, random.Random(5), 60)
    await log.owner.partition.save_producers()
    await start(2)
    before = {key: link.dump(key) for key in link.scan_iter(f"*{STREAM}*")}
    with pytest.raises(Exception, match="term"):
        await log.clean()
    assert {key: link.dump(key) for key in link.scan_iter(f"*{STREAM}*")} == before


async def test_small_batches_of_all_producers_become_one(log: Log, link: Any) -> None:
    """Readers find each record at its offset and by its time."""
    sequences = [0, 0, 0]
    for number in range(60):
        producer = number % 3
        known = {"producer_epoch": 0, "base_sequence": sequences[producer]} if producer else {}
        pairs = [(b"key %d" % (number % 50), b"%d" % number), (b"other %d" % number, b"x")]
        await log.send(*pairs, time=NOW + 10 * number, producer=producer or -1, **known)
        sequences[producer] += 2
    await log.clean()
    found = await log.check()
    assert len(found) == 111  # of the last batch, nothing is cleaned
    logs, partition = log.owner.storage.logs, log.owner.partition
    [segment] = logs.segments.cleaned(STREAM).segments
    # Pieces have 1, 4, 16 and 38 batches.
    assert segment.batches == link.xlen(f"{clean_of(STREAM)}:{segment.number}") == 4
    for offset in range(120):
        [batch] = await logs.read(STREAM, offset, 1)
        left = [each.offset for each in records(bytes(batch.batch), batch.base_offset)]
        assert min(each for each in found if each >= offset) in left
        assert batch.next_offset > offset
    searcher = Searcher(Decompression())
    for time in range(NOW, NOW + 600, 5):
        wanted = min((offset for offset, (_, _, sent) in found.items() if sent >= time), default=-1)
        place = await offset_lookup.find(logs, partition, time, searcher, None)
        assert place.offset == wanted
    before = {key: link.dump(key) for key in link.scan_iter()}
    await log.clean()
    assert {key: link.dump(key) for key in link.scan_iter()} == before


async def test_producers_go_on_after_their_batches_were_merged(log: Log, start: Any) -> None:
    for number in range(10):
        await log.send((b"%d" % number, b"v"), producer=1, producer_epoch=0, base_sequence=number)
    await log.clean()
    log.owner = await start(2)
    repeated = await log.owner.append(Append(build([(b"9", b"v", NOW, ())]), 1, NOW, 1, 0, 9))
    assert repeated == Appended(9, duplicate=True)
    assert await log.send((b"10", b"v"), producer=1, producer_epoch=0, base_sequence=10) == 10
    await log.clean()
    assert set(await log.check()) == set(range(11))


async def test_segments_of_many_passes_are_merged(log: Log, link: Any) -> None:
    for number in range(40):
        await log.send((b"%d" % number, b"v"))
        await log.clean()
    cleaned = log.owner.storage.logs.segments.cleaned(STREAM)
    assert sum(each.batches for each in cleaned.segments) <= 12
    assert set(await log.check()) == set(range(40))
