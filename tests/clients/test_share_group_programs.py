"""Java's own share consumer and franz-go's in share groups (KIP-932)."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.clients.member_programs import LANGUAGES, PATIENCE_S, Command, MemberProgram, compiled_go, compiled_java
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import configure, described

from headrace.testing import Server, server

pytestmark = pytest.mark.timeout(600)
_HERE = Path(__file__).parent / "sharers"
LOCK_MS = 2_500
QUIET_MS = 1_000
"""How long a member waits for records that must not come."""


class Got(NamedTuple):
    """A record that a member got."""

    place: str
    """PARTITION:OFFSET"""
    deliveries: int
    value: str


class Sharer(MemberProgram):
    """A member that does what it is asked."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command)
        self._polls_renewed = command[0] == "java"

    def poll(self, patience_ms: int = 5_000) -> list[Got]:
        """The next records, or none after so long."""
        found = []
        for line in self._ask(f"poll {patience_ms}"):
            word, place, deliveries, value = line.split(" ", 3)
            assert word == "record", line
            found.append(Got(place, int(deliveries), value))
        return found

    def acknowledge(self, kind: str, *places: str) -> None:
        """Say it to the client. It may send it at once, or with the next request."""
        assert self._ask(" ".join((kind, *places))) == []

    def commit(self) -> dict[str, str]:
        """Send the acknowledgements. Returns the errors of partitions, or empty texts."""
        found: dict[str, str] = {}
        for line in self._ask("commit"):
            word, partition, *error = line.split(" ", 2)
            assert word == "committed", line
            found[partition] = found.get(partition) or "".join(error)
        return found

    def renew(self, *places: str) -> dict[str, str]:
        """Renew locks. Java's client polls the records again before it acknowledges them again."""
        self.acknowledge("renew", *places)
        found = self.commit()
        if self._polls_renewed:
            assert [(each.place, each.deliveries) for each in self.poll()] == [(place, 1) for place in places]
        return found

    def _ask(self, line: str) -> list[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        answer: list[str] = []
        while (read := self.process.stdout.readline()) != ".\n":
            assert read, f"it has ended: {answer}"
            answer.append(read.rstrip("\n"))
        return answer

    def close(self) -> None:
        """Let it leave the group."""
        super().close()
        assert self.process.returncode == 0


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Command:
    program = compiled_java(_HERE, "ShareMember", tmp_path_factory.mktemp("java"))

    def command(*words: str, records: int = 500, implicit: bool = False) -> list[str]:
        settings = [
            f"share.acknowledgement.mode={'implicit' if implicit else 'explicit'}",
            "share.acquire.mode=record_limit",
            f"max.poll.records={records}",
        ]
        return program(*words, *settings)

    return command


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Command:
    program = compiled_go(_HERE / "go", tmp_path_factory.mktemp("go"))

    def command(*words: str, records: int = 500, implicit: bool = False) -> list[str]:
        """It has one mode for both: a poll accepts what was not acknowledged."""
        return program(*words, f"records={records}")

    return command


@pytest.fixture(params=LANGUAGES)
def command(request: pytest.FixtureRequest) -> Command:
    found: Command = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def join(command: Command, running: Server, topic: str) -> Iterator[Callable[..., Sharer]]:
    """Starts members of the group, and ends them with the test."""
    members: list[Sharer] = []

    def start(*, records: int = 500, implicit: bool = False) -> Sharer:
        members.append(Sharer(command(running.kafka, topic, topic, records=records, implicit=implicit)))
        # It runs then, and joins with its first poll.
        members[-1].acknowledge("accept")
        return members[-1]

    yield start
    for member in members:
        member.kill()


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(num_partitions=1, group_share_min_record_lock_duration_ms=1_000) as started:
        yield started


@pytest.fixture
def shared(wire: Wire, topic: str) -> str:
    """A topic that the group of the same name reads from its start."""
    configure(wire, topic, share_auto_offset_reset="earliest")
    return wire.create(topic, 1)


def fill(wire: Wire, topic: str, count: int) -> None:
    """Each record is a batch."""
    for number in range(count):
        wire.produce(topic, batch(b"%d" % number))


def lag(wire: Wire, topic: str) -> int:
    """Records of the group that are not done."""
    return int(described(wire, topic, (topic, [0]))[topic, 0][1])


def places(got: Sequence[Got]) -> list[str]:
    return [each.place for each in got]


def test_members_share_reject_and_release_and_get_the_rest_of_one_that_ends(
    join: Callable[..., Sharer], wire: Wire, shared: str
) -> None:
    fill(wire, shared, 40)
    members = [join(records=4), join(records=4)]
    first: Counter[str] = Counter()
    second: Counter[str] = Counter()
    by_member: list[int] = [0, 0]
    deadline = time.monotonic() + PATIENCE_S
    while (len(first), len(second)) != (40, 10):
        assert time.monotonic() < deadline, (first, second)
        for index, member in enumerate(members):
            for got in member.poll(QUIET_MS):
                (first if got.deliveries == 1 else second)[got.value] += 1
                by_member[index] += 1
                part = int(got.value) % 4
                kind = "reject" if part == 0 else "release" if part == 1 and got.deliveries == 1 else "accept"
                member.acknowledge(kind, got.place)
            assert set(member.commit().values()) <= {""}
    assert first == {str(number): 1 for number in range(40)}
    assert second == {str(number): 1 for number in range(1, 40, 4)}
    assert min(by_member) > 0
    assert lag(wire, shared) == 0

    stays, ends = members
    for end in (Sharer.close, Sharer.kill):
        fill(wire, shared, 8)
        held = ends.poll()
        assert held
        end(ends)
        began, again = time.monotonic(), dict[str, int]()
        while len(again) < 8:
            assert time.monotonic() - began < 15, "the locks would last for 30 s"
            found = stays.poll(QUIET_MS)
            again |= {each.value: each.deliveries for each in found}
            stays.acknowledge("accept", *places(found))
            assert set(stays.commit().values()) <= {""}
        assert {again[each.value] for each in held} == {2}
        assert lag(wire, shared) == 0
        ends = join(records=4)
    stays.close()


def test_a_record_that_is_released_too_often_is_archived(join: Callable[..., Sharer], wire: Wire, shared: str) -> None:
    configure(wire, shared, share_delivery_count_limit=3)
    fill(wire, shared, 1)
    member = join()
    counts: list[int] = []
    while got := member.poll(3_000 if not counts else QUIET_MS):
        counts.append(got[0].deliveries)
        member.acknowledge("release", *places(got))
        assert member.commit() == {"0": ""}
    assert counts == [1, 2, 3]
    assert lag(wire, shared) == 0
    member.close()


def test_a_lock_that_is_renewed_lasts(join: Callable[..., Sharer], wire: Wire, shared: str) -> None:
    configure(wire, shared, share_record_lock_duration_ms=LOCK_MS)
    fill(wire, shared, 2)
    first, second = join(), join()
    done, kept = places(first.poll())
    began = time.monotonic()
    while time.monotonic() - began < 2 * LOCK_MS / 1_000:
        assert first.renew(done, kept) == {"0": ""}
        assert second.poll(QUIET_MS) == []
    first.acknowledge("accept", done)
    assert first.commit() == {"0": ""}
    first.close()
    assert [(each.place, each.deliveries) for each in second.poll()] == [(kept, 2)]
    second.acknowledge("accept", kept)
    assert second.commit() == {"0": ""}
    assert lag(wire, shared) == 0
    second.close()


def test_a_late_acknowledgement_is_refused(join: Callable[..., Sharer], wire: Wire, shared: str) -> None:
    configure(wire, shared, share_record_lock_duration_ms=LOCK_MS)
    fill(wire, shared, 3)
    first, second = join(), join()
    late = first.poll()
    assert len(late) == 3
    again = second.poll()
    assert [(each.place, each.deliveries) for each in again] == [(each.place, 2) for each in late]
    first.acknowledge("accept", *places(late))
    assert first.commit() in ({"0": "InvalidRecordStateException"}, {"0": "INVALID_RECORD_STATE"})
    second.acknowledge("accept", *places(again))
    assert second.commit() == {"0": ""}
    for member in (first, second):
        member.close()


def test_a_poll_accepts_the_records_of_the_last(join: Callable[..., Sharer], wire: Wire, shared: str) -> None:
    fill(wire, shared, 6)
    member = join(records=3, implicit=True)
    seen: Counter[str] = Counter()
    while got := member.poll(3_000):
        seen.update(places(got))
        assert {each.deliveries for each in got} == {1}
    assert seen == {f"0:{offset}": 1 for offset in range(6)}
    assert set(member.commit().values()) <= {""}
    assert lag(wire, shared) == 0
    member.close()
