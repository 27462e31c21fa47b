"""Which end of a partition each reader gets where its isolation levels end at different offsets.

Without transactions they never do, so a fake `visible_end` stands for a transaction that is under way.
"""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from tests.broker.batches import batch
from tests.console.visiting import ask, commit
from tests.harness.memory import MemoryStorage
from tests.harness.wire import Wire, batches, opened
from tests.harness.wire import batch as of_values
from tests.oci.conftest import Api, new_stream

from headrace.broker.brokers.leader_reader import RemotePartitionReader
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.group_lag import plan_reset
from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.reader import ReadableLog, up_to
from headrace.broker.partition.source import Isolation
from headrace.broker.partition.timestamps import NOT_FOUND, FoundOffset, Searcher, Special
from headrace.broker.runtime.decompression import Decompression
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.client.cluster import LATEST, Cluster
from headrace.client.offsets import TopicPartition
from headrace.client.options import parse
from headrace.groups.offsets import Target
from headrace.records.batch import HEADER_SIZE, read_header
from headrace.records.build import build
from headrace.testing import InProcessServer
from headrace.testing.clock import ManualClock
from headrace.topics.model import StoredBatch

COMMITTED = Isolation.READ_COMMITTED
VALUES = [b"one", b"two", b"three", b"four"]
STABLE = 2
"""The records from this offset on are of a transaction that is under way."""
FIRST_MS = 1_700_000_000_000


def visible_end(log: ReadableLog | RemotePartitionReader, isolation: Isolation) -> int:
    return min(STABLE, log.log_end) if isolation is COMMITTED else log.log_end


@pytest.fixture
def unstable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every log has a transaction under way from `STABLE` on."""
    monkeypatch.setattr(ReadableLog, "visible_end", visible_end)
    monkeypatch.setattr(RemotePartitionReader, "visible_end", visible_end)


@pytest.fixture(scope="module", params=[64 << 20, 0], ids=["memory", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[InProcessServer]:
    with InProcessServer(oci_auth="off", headrace_cache_bytes=request.param) as started:
        yield started


@pytest.fixture
def wire(server: InProcessServer) -> Iterator[Wire]:
    with Wire(server.kafka) as client:
        yield client


@pytest.fixture
def api(server: InProcessServer) -> Iterator[Api]:
    made = Api(server.http)
    yield made
    made.close()


@pytest.fixture
def stream(api: Api, wire: Wire, unstable: None) -> tuple[str, str]:
    """The OCID and the name of a stream with four records, one to a batch and a second."""
    ocid, name = new_stream(api)
    for number, value in enumerate(VALUES):
        assert wire.produce(name, of_values(value, timestamp=FIRST_MS + 1_000 * number)).error_code == 0
    return ocid, name


def test_fetch_ends_where_its_isolation_does(wire: Wire, stream: tuple[str, str]) -> None:
    _, name = stream
    for isolation, values in ((0, VALUES), (1, VALUES[:STABLE])):
        offset, found = 0, []
        while offset < len(values):
            answer = wire.fetch(name, offset, isolation=isolation)
            assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 4, STABLE)
            read = [record for each in batches(answer.records) for record in opened(each)]
            found += [record.value for record in read]
            offset = read[-1].offset + 1
        assert found == values
    assert wire.fetch(name, STABLE, isolation=1).records in {None, b""}
    assert wire.fetch(name, 3, isolation=1).error_code == 0


def test_list_offsets_ends_where_its_isolation_does(wire: Wire, stream: tuple[str, str]) -> None:
    _, name = stream
    for isolation, end in ((0, 4), (1, STABLE)):
        assert wire.offset(name, Special.LATEST, isolation=isolation).offset == end
        assert wire.offset(name, Special.EARLIEST, isolation=isolation).offset == 0
        assert wire.offset(name, FIRST_MS + 1_000, isolation=isolation).offset == 1
        later = wire.offset(name, FIRST_MS + 3_000, isolation=isolation)
        assert (later.error_code, later.offset) == (0, 3 if isolation == 0 else -1)
    assert wire.offset(name, Special.MAX_TIMESTAMP).offset == 3
    assert wire.offset(name, Special.MAX_TIMESTAMP, isolation=1).offset == -1


def test_spark_and_the_archive_end_where_their_isolation_does(server: InProcessServer, stream: tuple[str, str]) -> None:
    """They ask through this client, which has `kafka.isolation.level` of the query."""
    partition = TopicPartition(stream[1], 0)
    for isolation, end in (("read_uncommitted", 4), ("read_committed", STABLE)):
        options = parse({"kafka.bootstrap.servers": server.kafka, "kafka.isolation.level": isolation})
        assert options is not None
        cluster = Cluster(options)
        assert cluster.offsets_at({partition: LATEST}) == {partition: end}
        cluster.close()


def test_oci_reads_what_is_committed(api: Api, stream: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    ocid, _ = stream
    committed, others = VALUES[:STABLE], VALUES[STABLE:]
    late = "2023-11-14T22:13:23Z"
    first = api.get(ocid, api.cursor(ocid))
    assert len(first.json) == STABLE
    assert api.values(ocid, api.cursor(ocid, "AT_TIME", time="2023-11-14T22:13:20Z")) == committed
    assert api.values(ocid, api.cursor(ocid, "AT_OFFSET", offset=1)) == committed[1:]
    refused = api.call("POST", f"/streams/{ocid}/cursors", {"partition": "0", "type": "AT_OFFSET", "offset": STABLE})
    assert refused.error[0] == 400
    assert "and the latest, 1" in refused.error[2]
    waiting = [
        api.get(ocid, cursor)
        for cursor in (
            first.next_cursor,
            api.cursor(ocid, "LATEST"),
            api.cursor(ocid, "AT_TIME", time=late),
            api.group_cursor(ocid, "newest", "LATEST"),
            api.group_cursor(ocid, "late", "AT_TIME", time=late),
        )
    ]
    assert [each.json for each in waiting] == [[]] * 5
    group = api.get(ocid, api.group_cursor(ocid, "all"))
    assert len(group.json) == STABLE

    monkeypatch.undo()
    expected = [others, others, others[1:], others, others[1:], others]
    assert [api.values(ocid, each.next_cursor) for each in (*waiting, group)] == expected


def test_the_console_shows_what_is_committed(
    server: InProcessServer, stream: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, name = stream
    queries = ("from=oldest", "from=newest", f"from={STABLE}", "at=2023-11-14T22:13:23Z", "show=3")
    for query in queries:
        assert "four" not in ask(server, f"/topics/{name}/records?{query}").text
    assert "two" in ask(server, f"/topics/{name}/records?from=oldest").text
    monkeypatch.undo()
    for query in queries:
        assert "four" in ask(server, f"/topics/{name}/records?{query}").text


def test_group_lag_counts_up_to_the_high_watermark(server: InProcessServer, stream: tuple[str, str]) -> None:
    """As Kafka's own tool for groups does."""
    _, name = stream
    group = f"of-{name}"
    commit(server, group, name, p0=1)
    metrics = ask(server, "/metrics").body.decode()
    [line] = [line for line in metrics.splitlines() if line.startswith("headrace_group_lag{") and f'"{group}"' in line]
    assert float(line.split()[-1]) == 3


async def test_a_reset_goes_up_to_the_high_watermark(storage: MemoryStorage, unstable: None) -> None:
    clusters = VirtualClusters(
        storage,  # type: ignore[arg-type]
        BrokerSettings.of({}),
        ManualClock(),
        cluster_id="c",
        stream_of=lambda _, *place: ":".join(map(str, place)),
    )
    broker = clusters.default
    await broker.topics.create("t", 1, {})
    log = broker.topics.get("t").partitions[0].log
    assert log is not None
    four(log, storage)
    for target, to in ((Target(latest=True), 4), (Target(offset=3), 3), (Target(time_ms=4_000), 3)):
        [move] = await plan_reset(broker, "g", target, "t")
        assert (move.to, move.lag) == (to, 4 - to)
    await clusters.stop()


def four(log: LeaderPartition, storage: MemoryStorage) -> int:
    """Append four records, one to a batch and a second; the size of each batch."""
    for number in range(4):
        log.append(batch(1, timestamp=1_000 * (number + 1)), lambda _: None)
    storage.logs.answer()
    return len(storage.logs.logs[log.stream].batches[0].batch)


def offsets(chunks: list[Buffer]) -> list[int]:
    """The offset of each record in batches that may have been joined."""
    found: list[int] = []
    for chunk in chunks:
        view, at = memoryview(chunk), 0
        while at < len(view):
            header = read_header(view[at : at + HEADER_SIZE])
            found += range(header.base_offset, header.base_offset + header.span)
            at += header.size
    return found


async def test_what_memory_has_ends_where_the_isolation_does(
    partition: LeaderPartition, storage: MemoryStorage, unstable: None
) -> None:
    size = four(partition, storage)
    for isolation, end in ((Isolation.READ_UNCOMMITTED, 4), (COMMITTED, STABLE)):
        for offset in range(4):
            expected = list(range(offset, max(offset, end)))
            chunks, total = partition.read_cached(offset, 10 * size, whole_first=True, isolation=isolation)
            assert (offsets(chunks), total) == (expected, len(expected) * size)
        assert offsets(partition.read_cached(0, size, whole_first=True, isolation=isolation)[0]) == [0]


@pytest.mark.parametrize("join", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 10])
async def test_what_storage_has_ends_where_the_isolation_does(
    partition: LeaderPartition,
    storage: MemoryStorage,
    drop_cached: Callable[[], None],
    unstable: None,
    join: bool,
    limit: int,
) -> None:
    size = four(partition, storage)
    drop_cached()
    for isolation, end in ((COMMITTED, STABLE), (Isolation.READ_UNCOMMITTED, 4), (COMMITTED, STABLE)):
        for offset in range(4):
            chunks, _ = await partition.read_stored(offset, limit * size, join=join, isolation=isolation)
            assert offsets(chunks) == list(range(offset, max(offset, min(end, offset + limit))))


@pytest.mark.parametrize("join", [False, True])
async def test_what_was_read_ahead_for_another_reader_ends_where_the_isolation_does(
    partition: LeaderPartition,
    storage: MemoryStorage,
    drop_cached: Callable[[], None],
    unstable: None,
    join: bool,
) -> None:
    size = four(partition, storage)
    drop_cached()
    for awaited in (True, False):
        chunks, _ = await partition.read_stored(0, size, join=join)
        assert offsets(chunks) == [0]
        if awaited:
            while not partition.cached(1):
                await asyncio.sleep(0)
            chunks, _ = partition.read_cached(1, 10 * size, whole_first=True, join=join, isolation=COMMITTED)
        else:
            chunks, _ = await partition.read_stored(1, 10 * size, join=join, isolation=COMMITTED)
        assert offsets(chunks) == [1]


def test_batches_that_come_as_one_are_cut_between_two() -> None:
    """The last is always by itself: its header says where an answer ends."""
    made = [bytes(build([(None, b"v", 0, ())], base_offset=number)) for number in range(6)]
    one, more = StoredBatch(0, 1, made[0]), StoredBatch(1, 4, b"".join(made[1:4]), 3)
    found = [one, more, StoredBatch(4, 6, b"".join(made[4:]), 2)]
    for end in range(7):
        kept = up_to(found, end)
        assert offsets([each.batch for each in kept]) == list(range(end))
        assert kept == found or all(each.count == 1 for each in kept[-1:])


async def test_a_log_that_another_broker_leads_ends_where_the_isolation_does(
    partition: LeaderPartition, storage: MemoryStorage, unstable: None
) -> None:
    size = four(partition, storage)
    found = await RemotePartitionReader.look_at(partition, storage.logs, 0)
    for isolation, end in ((Isolation.READ_UNCOMMITTED, 4), (COMMITTED, STABLE)):
        for offset in range(4):
            chunks, _ = await found.read_stored(offset, 10 * size, isolation=isolation)
            assert offsets(chunks) == list(range(offset, max(offset, end)))
        for each in (partition, found):
            searcher = Searcher(Decompression())
            assert await each.find_offset(Special.LATEST, searcher, isolation) == FoundOffset(end)
            last = await each.find_offset(4_000, searcher, isolation)
            assert last == (FoundOffset(3, 4_000) if end == 4 else NOT_FOUND)
