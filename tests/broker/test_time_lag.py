"""The age of the record that a group reads next: exact, cached, bounded, and never read from the archive."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.console.visiting import ask, commit
from tests.harness.exposition import read as samples_of
from tests.harness.memory import MemoryStorage
from tests.harness.wire import Wire, batch

from headrace.broker import time_lag
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.group_lag import plan_reset, reset
from headrace.broker.partition.remote_log import RemotePartition
from headrace.broker.time_lag import TimeLags
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.groups.model import TopicPartition
from headrace.groups.offsets import Target
from headrace.records.compression import NONE, ZSTD
from headrace.testing import InProcessServer
from headrace.testing.clock import ManualClock

FIRST_MS = 1_700_000_000_000
AGE_MS = 60_000
"""Of the first record, when the test begins."""
STEP_MS = 1_000
"""From one record of a batch to the next."""
PLACE = TopicPartition("t", 0)


class Server:
    """A broker with topic `t` of one partition and group `g`."""

    def __init__(self, storage: MemoryStorage, cache_bytes: int = 1 << 20) -> None:
        self.clock = ManualClock(FIRST_MS + AGE_MS)
        settings = BrokerSettings.of({"headrace.cache.bytes": str(cache_bytes)})
        self.clusters = VirtualClusters(
            storage,  # type: ignore[arg-type]
            settings,
            self.clock,
            cluster_id="c",
            stream_of=lambda _, *place: ":".join(map(str, place)),
        )
        self.broker = self.clusters.default
        self.lags = TimeLags(lambda: self.clusters, self.clock, self.clusters.lane)

    async def append(self, *values: bytes, at_ms: int = FIRST_MS, **fields: Any) -> None:
        made = bytearray(batch(*values, timestamp=at_ms, step=STEP_MS, **fields))
        live = self.broker.topics.get("t")
        live.append(0, made, self.clock.now_ms(), lambda _: None)
        await live.partition(0).settle()

    async def move(self, offset: int, group: str = "g") -> None:
        assert await reset(self.broker, group, await plan_reset(self.broker, group, Target(offset=offset), "t")) is None

    async def behind(self, group: str = "g") -> float | None:
        """Seconds, as of a new look."""
        self.clock.advance(3_000)
        await self.lags.refresh()
        return self.lags.seconds("default", group, PLACE)


@pytest.fixture(params=[1 << 20, 0], ids=["memory", "redis"])
async def server(request: pytest.FixtureRequest, storage: MemoryStorage) -> AsyncIterator[Server]:
    made = Server(storage, request.param)
    await made.broker.topics.create("t", 1, {})
    yield made
    await made.clusters.stop()


@pytest.mark.parametrize("codec", [NONE, ZSTD])
async def test_it_is_the_age_of_the_next_record_also_within_a_batch(server: Server, codec: int) -> None:
    await server.append(b"a", b"b", b"c", codec=codec)
    await server.append(b"d", at_ms=FIRST_MS + 30_000, codec=codec)
    for offset, since_ms in ((0, 0), (1, 1_000), (2, 2_000), (3, 30_000)):
        await server.move(offset)
        assert await server.behind() == (server.clock.now_ms() - FIRST_MS - since_ms) / 1_000
    await server.move(4)
    assert await server.behind() == 0
    await server.append(b"e", at_ms=FIRST_MS + 59_000)
    assert await server.behind() == (server.clock.now_ms() - FIRST_MS - 59_000) / 1_000


async def test_it_grows_while_nothing_is_read_without_another_lookup(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.append(b"a")
    await server.move(0)
    first = await server.behind()
    assert first is not None
    monkeypatch.setattr(time_lag, "next_timestamp", None)
    server.clock.advance(600_000)
    assert await server.behind() == first + 603


async def test_lookups_are_bounded_and_no_group_waits_for_ever(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_lag, "MOST_LOOKUPS", 2)
    await server.append(b"a", b"b")
    groups = [f"g{number}" for number in range(5)]
    for group in groups:
        await server.move(0, group)
    known = []
    for _ in range(3):
        await server.behind()
        known.append(sum(server.lags.seconds("default", group, PLACE) is not None for group in groups))
    assert known == [2, 4, 5]
    for group in groups:
        await server.move(1, group)
    exact = []
    for _ in range(3):
        await server.behind()
        now_s = (server.clock.now_ms() - FIRST_MS) / 1_000
        found = [server.lags.seconds("default", group, PLACE) for group in groups]
        assert set(found) <= {now_s, now_s - 1}, "that of the record read last stays until the next one is looked up"
        exact.append(found.count(now_s - 1))
    assert exact == [2, 4, 5]


async def test_a_record_in_the_archive_is_not_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    await server.append(b"a")
    await server.append(b"b", at_ms=FIRST_MS + 10_000)
    partition = server.broker.topics.get("t").partition(0)
    partition.local_start = 1  # type: ignore[misc]  # what retention has removed from Redis
    partition.cold = RemotePartition.__new__(RemotePartition)  # type: ignore[attr-defined]  # fails when used
    monkeypatch.setattr(type(partition), "log_start", 0)
    await server.move(0)
    assert await server.behind() == (server.clock.now_ms() - FIRST_MS - 10_000) / 1_000
    partition.cold = None  # type: ignore[attr-defined]


async def test_without_timestamps_nothing_is_known_and_no_age_is_negative(server: Server) -> None:
    await server.append(b"a", at_ms=-1)
    await server.append(b"b", at_ms=FIRST_MS + 1_000_000)
    await server.move(0)
    assert await server.behind() is None
    await server.move(1)
    assert await server.behind() == 0


async def test_a_topic_that_was_created_again_is_looked_up_again(server: Server) -> None:
    await server.append(b"a")
    await server.move(0)
    assert await server.behind() == AGE_MS / 1_000 + 3
    await server.broker.topics.delete("t")
    await server.broker.topics.create("t", 1, {})
    await server.append(b"a", at_ms=FIRST_MS + 50_000)
    await server.move(0)
    assert await server.behind() == (server.clock.now_ms() - FIRST_MS - 50_000) / 1_000


@pytest.mark.parametrize("storage_kind", ["log", "native"])
def test_metrics_and_console_show_it(storage_kind: str) -> None:
    with InProcessServer(num_partitions=1) as running, Wire(running.kafka) as client:
        client.create("slow", headrace_storage=storage_kind)
        began = running.clock.now_ms()
        client.produce("slow", batch(b"a", timestamp=began - 5_000_000))
        last = client.produce("slow", batch(b"b", timestamp=began - 1_000)).base_offset
        first = client.offset("slow", -2).offset

        def metric() -> float:
            running.clock.advance(3)
            samples = samples_of(ask(running, "/metrics").body)
            labels = {"group": "g", "topic": "slow", "partition": "0"}.items()
            return samples["headrace_group_lag_seconds", frozenset(labels)]

        for offset, least_s, shown in ((first, 5_000, "1 h 23 min"), (last, 1, "s"), (last + 1, 0, "0 s")):
            commit(running, "g", "slow", p0=offset)
            assert least_s <= metric() <= least_s + 200
            page = ask(running, "/groups/g").text
            assert f"Behind {shown}" in page or shown == "s"
