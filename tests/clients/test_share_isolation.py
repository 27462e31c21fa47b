"""Share groups that read committed records only (`share.isolation.level`), with librdkafka on both sides."""

import contextlib
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from tests.harness.wire import Wire
from tests.kafka.sharer import configure, described

from headrace.testing import Server, server

QUIET_S = 1.0
"""How long a member waits for records that must not come."""
PATIENCE_S = 30
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
_ACQUIRED = re.compile(rb"^headrace_share_acquired_records_total(?:\{.*\})? (\d+)", re.MULTILINE)


@pytest.fixture
def running() -> Iterator[Server]:
    with server(num_partitions=1) as started:
        yield started


@pytest.fixture
def shared(wire: Wire, topic: str) -> str:
    """A topic whose committed records the group of the same name reads from its start."""
    configure(wire, topic, share_auto_offset_reset="earliest", share_isolation_level=COMMITTED)
    return wire.create(topic, 1)


@pytest.fixture
def join(running: Server, topic: str) -> Iterator[Callable[..., Any]]:
    """Starts members of a group, by default of that of the topic."""
    members = []

    def start(group: str = topic) -> Any:
        config = {"bootstrap.servers": running.kafka, "group.id": group, "share.acknowledgement.mode": "explicit"}
        members.append(ShareConsumer(config))
        members[-1].subscribe([topic])
        return members[-1]

    yield start
    for member in members:
        with contextlib.suppress(RuntimeError):
            member.close()


class Transactions:
    """A transactional producer. Each record is a batch."""

    def __init__(self, running: Server, topic: str, name: str = "one") -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": running.kafka, "transactional.id": f"{topic}-{name}", "linger.ms": 0}
        )
        self._producer.init_transactions(PATIENCE_S)

    def begin(self, name: str, count: int = 3) -> list[str]:
        """Write records in a transaction, and leave it open. Returns their values."""
        self._producer.begin_transaction()
        return write(self._producer, self._topic, name, count)

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE_S)


def write(producer: Producer, topic: str, name: str, count: int = 3) -> list[str]:
    """Write records. Returns their values."""
    values = [f"{name}{number}" for number in range(count)]
    for value in values:
        producer.produce(topic, value.encode())
        assert producer.flush(PATIENCE_S) == 0
    return values


def plain(running: Server, topic: str, name: str, count: int = 3) -> list[str]:
    """Write records without a transaction. Returns their values."""
    return write(Producer({"bootstrap.servers": running.kafka}), topic, name, count)


def take(member: Any, count: int) -> dict[str, int]:
    """Accept so many records, and whatever comes soon after them. Returns the delivery counts of their values."""
    found: dict[str, int] = {}
    end = time.monotonic() + (PATIENCE_S if count else QUIET_S)
    while time.monotonic() < end:
        for each in polled(member, AcknowledgeType.ACCEPT):
            assert each.value().decode() not in found
            found[each.value().decode()] = each.delivery_count()
            if len(found) == count:
                end = time.monotonic() + QUIET_S
    return found


def polled(member: Any, kind: AcknowledgeType) -> list[Any]:
    """Acknowledge the records of a poll."""
    found = [each for each in member.poll(0.1) or () if each.error() is None]
    for each in found:
        member.acknowledge(each, kind)
    if found:
        assert {*map(str, member.commit_sync(10).values())} <= {"None"}
    return found


def acquired(running: Server) -> int:
    """Records that members have acquired since the server started."""
    with urllib.request.urlopen(f"{running.http}/metrics", timeout=PATIENCE_S) as response:
        (found,) = _ACQUIRED.findall(response.read())
    return int(found)


def left(wire: Wire, group: str, topic: str) -> int:
    """Records of the group that are not done."""
    return int(described(wire, group, (topic, [0]))[topic, 0][1])


def once(*values: list[str]) -> dict[str, int]:
    """These records in their first delivery."""
    return {value: 1 for some in values for value in some}


def test_aborted_records_and_markers_are_neither_delivered_nor_counted(
    running: Server, wire: Wire, shared: str, join: Callable[..., Any]
) -> None:
    transactions = Transactions(running, shared)
    before = transactions.begin("committed ")
    transactions.commit()
    transactions.begin("aborted ")
    transactions.abort()
    between = plain(running, shared, "plain ")
    transactions.begin("aborted, too ")
    transactions.abort()
    after = transactions.begin("committed, too ")
    transactions.commit()
    member = join()
    assert take(member, 9) == once(before, between, after)
    assert acquired(running) == 9
    assert left(wire, shared, shared) == 0
    assert described(wire, shared, (shared, [0]))[shared, 0][0] == wire.offset(shared, -1).offset


def test_an_open_transaction_holds_back_what_follows_it(
    running: Server, wire: Wire, shared: str, join: Callable[..., Any]
) -> None:
    configure(wire, "all", share_auto_offset_reset="earliest", share_isolation_level=UNCOMMITTED)
    first = plain(running, shared, "first ")
    long, short = Transactions(running, shared), Transactions(running, shared, "other")
    opened = long.begin("open ")
    behind = plain(running, shared, "behind ")
    finished = short.begin("finished ")
    short.commit()
    member = join()
    assert take(member, 3) == once(first)
    assert take(join("all"), 12) == once(first, opened, behind, finished)
    assert take(member, 0) == {}
    long.commit()
    assert take(member, 9) == once(opened, behind, finished)
    # The same for one that ends the other way.
    long.begin("open again ")
    later = plain(running, shared, "later ")
    assert take(member, 0) == {}
    long.abort()
    assert take(member, 3) == once(later)
    assert left(wire, shared, shared) == 0


def test_the_level_changes_while_records_are_in_flight(
    running: Server, wire: Wire, shared: str, join: Callable[..., Any]
) -> None:
    transactions = Transactions(running, shared)
    opened = transactions.begin("open ")
    member = join()
    assert take(member, 0) == {}
    configure(wire, shared, share_isolation_level=UNCOMMITTED)
    released: set[str] = set()
    end = time.monotonic() + PATIENCE_S
    while released != {*opened}:
        assert time.monotonic() < end
        released |= {each.value().decode() for each in polled(member, AcknowledgeType.RELEASE)}
    configure(wire, shared, share_isolation_level=COMMITTED)
    assert take(member, 0) == {}, "they are in an open transaction"
    transactions.abort()
    following = plain(running, shared, "plain ")
    assert take(member, 3) == once(following), "the transaction was aborted"
    assert left(wire, shared, shared) == 0


def test_a_restart_changes_nothing(running: Server, wire: Wire, shared: str, join: Callable[..., Any]) -> None:
    transactions = Transactions(running, shared)
    transactions.begin("aborted ")
    transactions.abort()
    done = transactions.begin("committed ")
    transactions.commit()
    transactions.begin("open ")
    behind = plain(running, shared, "behind ")
    member = join()
    assert take(member, 3) == once(done)
    running.restart()
    assert take(member, 0) == {}
    transactions.abort()
    assert take(member, 3) == once(behind)
    # It would fetch the next records ahead, and their locks end with the connection.
    member.close()
    finished = transactions.begin("finished ")
    transactions.commit()
    transactions.begin("aborted again ")
    transactions.abort()
    running.restart()
    member = join()
    assert take(member, 3) == once(finished)
    with Wire(running.kafka) as again:
        end = time.monotonic() + PATIENCE_S
        while left(again, shared, shared):
            print(time.monotonic(), described(again, shared, (shared, [0])))
            assert time.monotonic() < end
            assert take(member, 0) == {}
    assert acquired(running) == 3
