"""What readers get from the append-only file of a real Valkey is what XRANGE would give."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.aof import batch, places, whole, xadd
from tests.harness.valkey import running_valkey, valkey

from headrace.broker.config.settings import BrokerSettings
from headrace.broker.partition.cache import FILE_READER_CACHE_BYTES, CacheBudget
from headrace.metrics.counters import StoreCounters
from headrace.server.process import limit_cache_with_file_reader
from headrace.storage.layout import entries
from headrace.storage.redis.clients import asynchronous
from headrace.storage.storage import RedisStorage
from headrace.storage.valkey.aof import AppendOnlyFile
from headrace.storage.valkey.datadir import MANIFEST, RECORDS
from headrace.topics.model import Append

pytest.importorskip("headrace.storage.valkey._aof", reason="the file is read by an extension")

KEYS = ("headrace:t:0", "headrace:t:1")


async def placed(storage: RedisStorage, *batches: bytearray) -> None:
    """Place batches of a log all at once, each where its header says."""
    done: asyncio.Queue[Exception | None] = asyncio.Queue()
    for each in batches:
        base, span = int.from_bytes(each[:8], "big"), int.from_bytes(each[23:27], "big") + 1
        storage.logs.place(KEYS[0], Append(each, span, 1_000), base, done.put_nowait)
    assert [await done.get() for _ in batches] == [None] * len(batches)


async def test_readers_of_the_storage_get_batches_from_the_file(tmp_path: Path) -> None:
    counted = StoreCounters()
    async with running_valkey(tmp_path) as embedded, contextlib.AsyncExitStack() as stack:
        storage = await RedisStorage.open(
            embedded.url, asynchronous(embedded.url), 1, records=embedded.records, counted=counted
        )
        stack.push_async_callback(storage.close)
        logs = storage.logs
        assert storage.reads_file
        await logs.open(KEYS[0], lambda _: None, create=True)
        sent = [batch(2 * place, 2, size) for place, size in enumerate((10, 5_000, 100_000))]
        await placed(storage, *sent)
        # The first known place is requested: the data before it is unknown.
        assert places(await logs.read(KEYS[0], 0, 1)) == [0]
        asked = counted.asked_bytes
        assert asked == len(sent[0])
        expected = [(2 * place, 2 * place + 2, bytes(each)) for place, each in enumerate(sent)]
        assert whole(await logs.read(KEYS[0], 2, 10)) == expected[1:]
        await logs.save_producers(KEYS[0], 6, {})
        await logs.mirror_offset(KEYS[0], "group", 4)
        await logs.trim(KEYS[0], before_offset=2)
        assert whole(await logs.read(KEYS[0], 2, 10, 4)) == expected[1:2]
        await logs.open(KEYS[0], lambda _: None)
        await placed(storage, batch(6))
        assert places(await logs.read(KEYS[0], 2, 10)) == [2, 4, 6]
        sizes = [len(each) for each in sent]
        assert counted.file_bytes == 2 * sum(sizes[1:]) + sizes[1] + len(batch(6))
        assert counted.asked_bytes == asked
        # What it does not know is asked for.
        (embedded.records / MANIFEST).rename(embedded.records / "elsewhere")
        assert places(await logs.read(KEYS[0], 2, 10)) == [2, 4, 6]
        assert counted.asked_bytes == asked + sum(sizes[1:]) + len(batch(6))
        (embedded.records / "elsewhere").rename(embedded.records / MANIFEST)


@pytest.mark.parametrize(("wanted", "limit"), [(-1, FILE_READER_CACHE_BYTES), (1 << 20, 1 << 20), (1 << 30, 1 << 30)])
def test_next_to_the_file_the_server_keeps_little_itself(wanted: int, limit: int) -> None:
    asked = BrokerSettings.of({"headrace.cache.bytes": str(wanted)})
    cache = CacheBudget(asked.headrace_cache_bytes)
    limit_cache_with_file_reader(cache, asked)
    assert cache.limit == limit


class Kept(NamedTuple):
    """A Valkey with its append-only file."""

    url: str
    records: Path


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = tmp_path_factory.mktemp("valkey")
    with valkey(folder) as url:
        yield Kept(url, folder / RECORDS)


def id_of(entry_id: bytes) -> entries.EntryId:
    term, _, following = entry_id.partition(b"-")
    return int(term), int(following)


class Doing:
    """Operations on two logs, and on the keys next to them."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.term = 1

    def ends(self, key: str) -> tuple[int, int] | None:
        """The last id of a stream."""
        if self.client.type(key) != b"stream":
            return None
        return id_of(self.client.xinfo_stream(key)["last-generated-id"])

    def open(self, key: str) -> None:
        self.term += 1
        with self.client.pipeline() as call:
            if self.ends(key) is None:
                call.execute_command("DEL", key)
                call.execute_command("XADD", key, f"{self.term}-0", "m", "")
                call.execute_command("XDEL", key, f"{self.term}-0")
            else:
                call.execute_command("XSETID", key, f"{self.term}-0")
            call.execute()

    def append(self, key: str, spans: Sequence[int], ahead: int = 0, size: int = 10) -> None:
        ends = self.ends(key)
        if ends is None:
            return
        last = self.client.xrevrange(key, count=1)
        base = int(last[0][0].split(b"-")[1]) if last else ends[1]
        base = (base if base < 10**9 else 0) + ahead
        with self.client.pipeline(transaction=len(spans) > 1) as call:
            for span in spans:
                call.execute_command(*xadd(key, f"{self.term}-{base + span}", batch(base, span, size)))
                base += span
            call.execute()

    def delete(self, key: str, place: int) -> None:
        if self.ends(key) is not None and (found := self.client.xrange(key)):
            self.client.xdel(key, found[place % len(found)][0])

    def trim(self, key: str, place: int) -> None:
        if self.ends(key) is not None and (found := self.client.xrange(key)):
            self.client.execute_command("XTRIM", key, "MINID", "=", found[place % len(found)][0])

    def elsewhere(self, key: str) -> None:
        """The same names in another database."""
        with self.client.pipeline(transaction=False) as call:
            call.execute_command("SELECT", 1)
            call.execute_command("XADD", key, "*", "x", "y")
            call.execute_command(*xadd(key, "9000000000000-1", batch(0)))
            call.execute_command("SELECT", 0)
            call.execute(raise_on_error=False)

    def rewrite(self) -> None:
        while self.client.info("persistence")["aof_rewrite_in_progress"]:
            pass
        self.client.bgrewriteaof()

    def do(self, what: str, key: str, number: int) -> None:
        client, other = self.client, KEYS[key == KEYS[0]]
        ways: dict[str, Callable[[], object]] = {
            "open": lambda: self.open(key),
            "append": lambda: self.append(key, [number % 4 + 1], size=number * 200),
            "several": lambda: self.append(key, [1, 2, number + 1]),
            "ahead": lambda: self.append(key, [1], ahead=number),
            "overlap": lambda: self.append(key, [number + 2], ahead=-1),
            "delete": lambda: self.delete(key, number),
            "trim": lambda: self.trim(key, number),
            "cut": lambda: client.execute_command("XTRIM", key, "MAXLEN", "~" if number % 2 else "=", number),
            "stray": lambda: client.execute_command("XADD", key, "*", "b", bytes(batch(number)), "t", "1", "s", "1"),
            "script": lambda: client.eval("return redis.call('XTRIM', KEYS[1], 'MAXLEN', ARGV[1])", 1, key, number),
            "drop": lambda: client.unlink(key),
            "rename": lambda: client.rename(key, other),
            "copy": lambda: client.execute_command("COPY", key, other, "REPLACE"),
            "put": lambda: client.execute_command("RESTORE", other, 0, client.dump(key) or b"", "REPLACE"),
            "group": lambda: client.execute_command("XGROUP", "CREATE", key, str(number), "$"),
            "flush": client.flushdb,
            "swap": lambda: client.execute_command("SWAPDB", 0, 1),
            "elsewhere": lambda: self.elsewhere(key),
            "rewrite": self.rewrite,
        }
        ways[what]()


ORDINARY = ("open", "append", "append", "several", "several", "append", "trim")
UNUSUAL = (
    "ahead", "overlap", "delete", "cut", "stray", "script", "drop", "rename", "copy", "put", "group", "flush",
    "swap", "elsewhere", "rewrite",
)  # fmt: skip
STEPS = st.lists(
    st.tuples(st.sampled_from(ORDINARY * 4 + UNUSUAL), st.sampled_from(KEYS), st.integers(0, 9)),
    min_size=1,
    max_size=25,
)


async def compare(file: AppendOnlyFile, client: Any, key: str, wanted: int) -> int:
    """Read a log from each of its batches on, and ask Valkey for the same; how many answers there were."""
    answers = 0
    stream = client.xrange(key) if client.type(key) == b"stream" else []
    ids = [id_of(entry_id) for entry_id, _ in stream] or [(1, 1)]
    starts = {(term, following - back) for term, following in ids for back in (0, 1)} | {(ids[-1][0] - 1, 1)}
    for first in sorted(start for start in starts if start[1] > 0):
        for last, count in ((entries.LAST_ID, 100), (ids[wanted % len(ids)], 100), (entries.LAST_ID, wanted)):
            found = await file.read(key.encode(), first, last, count)
            if found is None:
                continue
            answers += 1
            raw = client.execute_command(
                "XRANGE", key, entries.entry_id(*first), entries.entry_id(*last), "COUNT", count
            )
            flat = [(entry_id, [item for pair in fields.items() for item in pair]) for entry_id, fields in raw]
            assert whole(found) == whole(entries.decode(flat))
            assert len(found) == len(raw)
            joined = await file.read(key.encode(), first, last, count, 1 << 20)
            assert joined is not None
            assert b"".join(each.batch for each in joined) == b"".join(each.batch for each in found)
            assert (joined[0].base_offset, joined[-1]) == (found[0].base_offset, found[-1])
    return answers


async def run(kept: Kept, steps: Sequence[tuple[str, str, int]]) -> int:
    file = AppendOnlyFile.open(kept.records, 1 << 40)
    if file is None:
        pytest.skip("this disk lets nobody read without waiting for it")
    answers = 0
    client = redis.Redis.from_url(kept.url)
    with contextlib.closing(client):
        client.flushall()
        doing = Doing(client)
        for key in KEYS:
            doing.open(key)
            doing.append(key, [1, 1, 1, 1])
        for what, key, number in steps:
            with contextlib.suppress(redis.ResponseError):
                doing.do(what, key, number)
            for each in KEYS:
                answers += await compare(file, client, each, number)
    await file.close()
    return answers


@settings(deadline=None, max_examples=100)
@given(STEPS)
def test_the_file_never_answers_what_valkey_would_not(kept: Kept, steps: list[tuple[str, str, int]]) -> None:
    asyncio.run(run(kept, steps))


def test_the_file_answers_for_logs_that_only_their_owner_touches(kept: Kept) -> None:
    steps = [("append", KEYS[0], 3), ("several", KEYS[0], 1), ("open", KEYS[0], 0), ("append", KEYS[0], 9)]
    assert asyncio.run(run(kept, steps)) >= 3 * len(steps)
    assert asyncio.run(run(kept, [("rewrite", KEYS[0], 0), *steps])) >= 3 * len(steps)
