"""What Fetch answers, from the cached tail and from Redis (reference: KIP-74, KIP-227, KIP-320)."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.wire import Wire, batch, batches, fetch_request, opened, produce_request

from headrace.kafka.errors import Code
from headrace.protocol.messages import FetchRequest
from headrace.testing import Server, server

PATIENCE_MS = 600_000
"""Far more than the test waits for an answer: one that comes was not waited for."""


@pytest.fixture(scope="session")
def without_cache() -> Iterator[Server]:
    """A server that keeps nothing in memory: every fetch reads Redis."""
    with server(headrace_cache_bytes=0) as started:
        yield started


@pytest.fixture(params=["memory", "redis"])
def serving(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue("running" if request.param == "memory" else "without_cache")
    return found


@pytest.fixture
def wire(serving: Server) -> Iterator[Wire]:
    with Wire(serving.kafka) as client:
        yield client


@pytest.fixture
def other(serving: Server) -> Iterator[Wire]:
    with Wire(serving.kafka) as client:
        yield client


def spans(data: bytes | memoryview | None) -> list[list[int]]:
    """The offsets in each batch of an answer."""
    return [[record.offset for record in opened(one)] for one in batches(data)]


def everything(wire: Wire, topic: str, offset: int, *, version: int = 12) -> list[bytes]:
    """The batches from an offset to the log end; one answer may hold fewer than its limits allow."""
    found: list[bytes] = []
    while True:
        answer = wire.fetch(topic, offset, version=version)
        assert answer.error_code == 0
        found += batches(answer.records)
        offset = opened(found[-1])[-1].offset + 1
        if offset == answer.high_watermark:
            return found


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_gives_the_same_records(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"one", b"two"))
    wire.produce(topic, batch(None))
    found = wire.fetch(topic, 0, version=version)
    got = opened(b"".join(everything(wire, topic, 0, version=version)))
    assert [(record.offset, record.value) for record in got] == [(0, b"one"), (1, b"two"), (2, None)]
    assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 3, 3)
    assert found.log_start_offset == (0 if version >= 5 else -1)


@pytest.mark.parametrize(("isolation", "aborted"), [(0, None), (1, [])])
def test_isolation_levels_differ_in_the_list_of_aborted_transactions(
    wire: Wire, topic: str, isolation: int, aborted: list[object] | None
) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"one"))
    found = wire.fetch(topic, 0, isolation=isolation)
    assert found.aborted_transactions == aborted
    assert len(opened(found.records)) == 1


@pytest.mark.parametrize("offset", range(6))
def test_an_offset_inside_a_batch_gives_the_whole_batch(wire: Wire, topic: str, offset: int) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"0", b"1", b"2"))
    wire.produce(topic, batch(b"3", b"4"))
    wire.produce(topic, batch(b"5"))
    expected = [[0, 1, 2], [3, 4], [5]]
    got = b"".join(everything(wire, topic, offset))
    assert spans(got) == [one for one in expected if one[-1] >= offset]


def test_batches_are_stamped_with_offset_and_leader_epoch(wire: Wire, topic: str) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"one", base_offset=77, leader_epoch=5))
    wire.produce(topic, batch(b"two", base_offset=77, leader_epoch=5))
    epoch = wire.metadata(topic).topics[0].partitions[0].leader_epoch
    stamped = [(one[:8], one[12:16]) for one in everything(wire, topic, 0)]
    assert stamped == [(number.to_bytes(8, "big"), epoch.to_bytes(4, "big")) for number in range(2)]


def test_the_first_batch_comes_whole_whatever_the_limits(wire: Wire, topic: str) -> None:
    wire.create(topic)
    for _ in range(3):
        wire.produce(topic, batch(bytes(10_000)))
    for limits in ({"partition_max_bytes": 1}, {"max_bytes": 1}, {"partition_max_bytes": 0}, {"max_bytes": 0}):
        assert spans(wire.fetch(topic, 0, **limits).records) == [[0]], limits
        assert spans(wire.fetch(topic, 1, **limits).records) == [[1]], limits
    for name in ("partition_max_bytes", "max_bytes"):
        assert spans(wire.fetch(topic, 0, **{name: 25_000}).records) in ([[0]], [[0], [1]])


def test_later_partitions_come_only_if_they_fit(wire: Wire, topic: str) -> None:
    names = [wire.create(f"{topic}-{number}") for number in range(3)]
    for name in names:
        wire.produce(name, batch(bytes(10_000)))
    sizes: dict[int, int] = {}
    firsts = set()
    for _ in range(6):
        answer = wire.ask(fetch_request([(name, 0, 0) for name in names], max_bytes=1), 12)
        filled = [one.topic for one in answer.responses if one.partitions[0].records]
        assert len(filled) == 1
        firsts.update(filled)
        sizes[len(answer.responses)] = 1
    assert firsts == set(names), "each has its turn"
    assert sizes == {3: 1}
    answer = wire.ask(fetch_request([(name, 0, 0) for name in names], max_bytes=25_000), 12)
    assert sorted(len(opened(one.partitions[0].records)) for one in answer.responses) == [0, 1, 1]


def test_clients_that_take_turns_get_every_partition(wire: Wire, other: Wire, topic: str) -> None:
    names = [wire.create(f"{topic}-{number}") for number in range(2)]
    for name in names:
        wire.produce(name, batch(bytes(10_000)))
    got: dict[int, set[str]] = {0: set(), 1: set()}
    for _ in range(4):
        for number, client in enumerate((wire, other)):
            answer = client.ask(fetch_request([(name, 0, 0) for name in names], max_bytes=1), 12)
            got[number].update(one.topic for one in answer.responses if one.partitions[0].records)
    assert got == {0: set(names), 1: set(names)}


def test_an_empty_partition_before_a_large_batch_does_not_wedge_the_consumer(wire: Wire, topic: str) -> None:
    empty, full = wire.create(f"{topic}-empty"), wire.create(f"{topic}-full")
    wire.produce(full, batch(bytes(50_000)))
    for _ in range(4):
        request = fetch_request([(empty, 0, 0), (full, 0, 0)], max_bytes=10, partition_max_bytes=10)
        assert len(opened(wire.ask(request, 12).responses[1].partitions[0].records)) == 1


@pytest.mark.parametrize("offset", [-1, 3, 4, 2**62])
def test_an_offset_out_of_range(wire: Wire, topic: str, offset: int) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"one", b"two"))
    found = wire.fetch(topic, offset, max_wait_ms=PATIENCE_MS)
    assert (found.error_code, found.high_watermark, found.log_start_offset) == (Code.OFFSET_OUT_OF_RANGE, -1, -1)
    assert not found.records


def test_the_log_end_is_in_range_and_empty(wire: Wire, topic: str) -> None:
    wire.create(topic)
    assert wire.fetch(topic, 0).error_code == 0
    wire.produce(topic, batch(b"one"))
    found = wire.fetch(topic, 1)
    assert (found.error_code, found.high_watermark, found.records) in {(0, 1, None), (0, 1, b"")}


def test_unknown_topics_and_partitions(wire: Wire, topic: str) -> None:
    wire.create(topic)
    places = [(topic, 0, 0), (topic, 1, 0), (topic, -1, 0), (f"{topic}-gone", 0, 0)]
    answer = wire.ask(fetch_request(places, max_wait_ms=PATIENCE_MS), 12)
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    assert [one.error_code for each in answer.responses for one in each.partitions] == [0, unknown, unknown, unknown]


@pytest.mark.parametrize(("shift", "code"), [(-1, Code.FENCED_LEADER_EPOCH), (0, 0), (1, Code.UNKNOWN_LEADER_EPOCH)])
def test_leader_epochs(wire: Wire, topic: str, shift: int, code: int) -> None:
    wire.create(topic)
    epoch = wire.metadata(topic).topics[0].partitions[0].leader_epoch + shift
    if epoch == -1:  # which says that the client knows none
        assert wire.fetch(topic, 0, epoch=epoch).error_code == 0
        return
    assert wire.fetch(topic, 0, epoch=epoch).error_code == code
    assert wire.offset(topic, -1, epoch=epoch).error_code == code


def waits(client: Wire, *places: tuple[str, int, int], **limits: Any) -> tuple[list[int], float]:
    """Records per partition of a fetch, and the seconds it took."""
    begun = time.monotonic()
    answer = client.ask(fetch_request(places, **limits), 12)
    return [len(opened(one.partitions[0].records)) for one in answer.responses], time.monotonic() - begun


def test_a_fetch_without_records_waits_its_time(wire: Wire, topic: str) -> None:
    wire.create(topic)
    found, seconds = waits(wire, (topic, 0, 0), max_wait_ms=300)
    assert found == [0]
    assert seconds >= 0.29


@pytest.mark.parametrize("limits", [{"max_wait_ms": 0}, {"max_wait_ms": PATIENCE_MS, "min_bytes": 0}])
def test_a_fetch_that_need_not_wait_does_not(wire: Wire, topic: str, limits: dict[str, int]) -> None:
    wire.create(topic)
    found, _ = waits(wire, (topic, 0, 0), **limits)
    assert found == [0]


def test_an_error_is_returned_at_once(wire: Wire, topic: str) -> None:
    wire.create(topic)
    found, _ = waits(wire, (topic, 0, 0), (topic, 9, 0), max_wait_ms=PATIENCE_MS)
    assert found == [0]


def test_an_append_wakes_a_waiting_fetch(wire: Wire, other: Wire, topic: str) -> None:
    names = [wire.create(f"{topic}-{number}") for number in range(2)]
    for offset in range(10):
        wire.send(fetch_request([(name, 0, offset) for name in names], max_wait_ms=PATIENCE_MS), 12)
        assert wire.is_silent(0.02)
        for name in names[::-1]:
            other.produce(name, batch(b"now"))
        answer = wire.receive()
        assert opened(answer.responses[1].partitions[0].records)


def test_a_waiting_fetch_wants_its_min_bytes(wire: Wire, other: Wire, topic: str) -> None:
    wire.create(topic)
    size = len(batch(bytes(1_000)))
    wire.send(fetch_request([(topic, 0, 0)], max_wait_ms=PATIENCE_MS, min_bytes=3 * size), 12)
    for _ in range(2):
        other.produce(topic, batch(bytes(1_000)))
    assert wire.is_silent(0.05)
    other.produce(topic, batch(bytes(1_000)))
    answer = wire.receive()
    assert spans(answer.responses[0].partitions[0].records) == [[0], [1], [2]]


def test_min_bytes_that_do_not_come_are_not_waited_for_for_ever(wire: Wire, topic: str) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"little"))
    found, seconds = waits(wire, (topic, 0, 0), max_wait_ms=200, min_bytes=1 << 20)
    assert found == [1]
    assert seconds >= 0.19


def test_deleting_the_topic_ends_a_waiting_fetch(wire: Wire, other: Wire, topic: str) -> None:
    wire.create(topic)
    wire.send(fetch_request([(topic, 0, 0)], max_wait_ms=PATIENCE_MS), 12)
    assert wire.is_silent(0.02)
    other.delete(topic)
    assert wire.receive().responses[0].partitions[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_client_that_disconnects_while_it_waits_does_no_harm(wire: Wire, other: Wire, topic: str) -> None:
    wire.create(topic)
    other.send(fetch_request([(topic, 0, 0)], max_wait_ms=PATIENCE_MS), 12)
    assert other.is_silent(0.02)
    other.close()
    wire.produce(topic, batch(b"one"))
    assert len(opened(wire.fetch(topic, 0).records)) == 1


def test_no_session_is_given_out(wire: Wire, topic: str) -> None:
    wire.create(topic)
    answer = wire.ask(fetch_request([(topic, 0, 0)], session=(0, 0)), 12)
    assert (answer.error_code, answer.session_id) == (0, 0)
    assert answer.responses, "the answer is a full one"
    assert wire.ask(fetch_request([(topic, 0, 0)], session=(0, -1)), 12).error_code == 0
    assert wire.ask(fetch_request([], session=(77, 3)), 12).error_code == 70  # FETCH_SESSION_ID_NOT_FOUND


def test_a_fetch_of_nothing(wire: Wire) -> None:
    answer = wire.ask(FetchRequest(max_wait_ms=50, min_bytes=1, topics=[]), 12)
    assert (answer.error_code, answer.responses) == (0, [])


def test_readers_and_writers_at_once_see_every_offset_once(wire: Wire, serving: Server, topic: str) -> None:
    wire.create(topic)
    total = 300

    def write() -> None:
        with Wire(serving.kafka) as writer:
            for number in range(total):
                writer.send(produce_request(topic, batch(b"%d" % number)), 9)
            for _ in range(total):
                writer.receive()

    thread = threading.Thread(target=write)
    thread.start()
    seen: list[bytes | None] = []
    while len(seen) < total:
        found = wire.fetch(topic, len(seen), max_wait_ms=PATIENCE_MS)
        assert found.error_code == 0
        records = opened(found.records)
        assert records, "woken with nothing"
        assert records[0].offset == len(seen)
        seen += [record.value for record in records]
    thread.join()
    assert seen == [b"%d" % number for number in range(total)]
