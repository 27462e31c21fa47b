"""Java's own consumer, franz-go and Kafka's tools with groups of KIP-848."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.clients.member_programs import LANGUAGES, PATIENCE_S, Command, MemberProgram, compiled_go, compiled_java
from tests.harness.apache_kafka import tool
from tests.harness.wire import Wire, batch

from headrace.protocol.messages import IncrementalAlterConfigsRequest
from headrace.testing import Server, server

_HERE = Path(__file__).parent / "consumers"
PARTITIONS = 4
Request = IncrementalAlterConfigsRequest
_GROUP = 32


class Program(MemberProgram):
    """A member that prints what it has and reads."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command)
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def owned(self) -> set[str]:
        """The partitions that it has."""
        told = [line for line in list(self.lines) if line.startswith("assigned")]
        return set(told[-1].split()[1:]) if told else set()

    def read(self) -> list[str]:
        """The values that it has read."""
        return [line.removeprefix("record ") for line in list(self.lines) if line.startswith("record ")]

    def ended(self) -> None:
        """Wait for its end, and for its last lines."""
        self.process.wait(PATIENCE_S)
        self._reading.join(PATIENCE_S)
        super().ended()


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Command:
    return compiled_java(_HERE, "GroupMember", tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Command:
    return compiled_go(_HERE / "go", tmp_path_factory.mktemp("go"))


@pytest.fixture(params=LANGUAGES)
def command(request: pytest.FixtureRequest) -> Command:
    found: Command = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def started() -> Iterator[Callable[[Sequence[str]], Program]]:
    """Starts members, and ends them with the test."""
    programs: list[Program] = []

    def start(command: Sequence[str]) -> Program:
        programs.append(Program(command))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(
        num_partitions=1,
        group_consumer_min_session_timeout_ms=3_000,
        group_consumer_session_timeout_ms=3_000,
        group_consumer_min_heartbeat_interval_ms=1_000,
        group_consumer_heartbeat_interval_ms=1_000,
    ) as begun:
        yield begun


def all_of(topic: str, partitions: int = PARTITIONS) -> set[str]:
    return {f"{topic}-{number}" for number in range(partitions)}


def halves(topic: str, *members: Program) -> bool:
    shares = [member.owned for member in members]
    return set().union(*shares) == all_of(topic) and all(len(share) == PARTITIONS // len(members) for share in shares)


def test_members_share_commit_leave_and_die(
    command: Command,
    started: Callable[[Sequence[str]], Program],
    running: Server,
    wire: Wire,
    topic: str,
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    wire.create(topic, PARTITIONS)
    for number in range(PARTITIONS):
        wire.produce(topic, batch(b"one %d" % number), partition=number)
    first = started(command(running.kafka, topic, topic))
    eventually(lambda: len(first.read()) == PARTITIONS and first.owned == all_of(topic))
    second = started(command(running.kafka, topic, topic))
    eventually(lambda: halves(topic, first, second))
    for number in range(PARTITIONS):
        wire.produce(topic, batch(b"two %d" % number), partition=number)
    eventually(lambda: len(first.read()) + len(second.read()) == 2 * PARTITIONS)
    assert len(second.read()) == PARTITIONS // 2, "nothing that was committed comes again"
    eventually(lambda: [wire.committed(topic, topic, number) for number in range(PARTITIONS)] == [2] * PARTITIONS)
    second.close()
    eventually(lambda: first.owned == all_of(topic))
    third = started(command(running.kafka, topic, topic))
    eventually(lambda: halves(topic, first, third))
    third.kill()
    began = time.monotonic()
    eventually(lambda: first.owned == all_of(topic))
    assert time.monotonic() - began < 15
    first.close()


def test_topics_of_a_pattern(
    command: Command,
    started: Callable[[Sequence[str]], Program],
    running: Server,
    wire: Wire,
    topic: str,
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    wire.create(f"{topic}-a", 2)
    wire.create(f"{topic[:-1]}x-a")
    first = started(command(running.kafka, topic, f"~{topic}-.*"))
    second = started(command(running.kafka, topic, f"~{topic}-.*"))
    eventually(lambda: first.owned | second.owned == all_of(f"{topic}-a", 2) and len(first.owned) == 1)
    wire.create(f"{topic}-b", 2)
    eventually(lambda: first.owned | second.owned == all_of(f"{topic}-a", 2) | all_of(f"{topic}-b", 2))
    wire.delete(f"{topic}-a")
    eventually(lambda: first.owned | second.owned == all_of(f"{topic}-b", 2))
    first.close()
    second.close()


@pytest.mark.maven
def test_a_static_member_of_java_comes_back_to_its_partitions(
    java: Command,
    started: Callable[[Sequence[str]], Program],
    running: Server,
    wire: Wire,
    topic: str,
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    """Not franz-go's 1.22: it leaves without its instance ID, which Kafka rejects as well."""
    wire.create(topic, PARTITIONS)
    # A program takes longer to start than the others' sessions.
    session = Request.AlterableConfig(name="consumer.session.timeout.ms", config_operation=0, value="45000")
    config = Request.AlterConfigsResource(resource_type=_GROUP, resource_name=topic, configs=[session])
    assert wire.ask(Request(resources=[config]), 1).responses[0].error_code == 0
    first, second = (started(java(running.kafka, topic, topic, name)) for name in ("one", "two"))
    eventually(lambda: halves(topic, first, second))
    shares = first.owned, second.owned
    second.close()
    second = started(java(running.kafka, topic, topic, "two"))
    eventually(lambda: second.owned)
    assert (first.owned, second.owned) == shares
    first.close()
    second.close()


@pytest.mark.maven
def test_kafkas_tools(
    java: Command,
    started: Callable[[Sequence[str]], Program],
    running: Server,
    wire: Wire,
    topic: str,
    eventually: Callable[[Callable[[], object]], None],
) -> None:
    wire.create(topic, PARTITIONS)
    wire.produce(topic, batch(b"one"))
    member = started(java(running.kafka, topic, topic))
    eventually(lambda: member.read() and member.owned == all_of(topic))
    brings = ("--bootstrap-server", running.kafka)

    def groups(*words: str) -> list[list[str]]:
        return [
            line.split() for line in tool("consumer.group.ConsumerGroupCommand", *brings, *words).splitlines() if line
        ]

    eventually(lambda: wire.committed(topic, topic) == 1)
    described = [row for row in groups("--describe", "--group", topic) if row[0] == topic]
    assert sorted((row[1], int(row[2])) for row in described) == [(topic, number) for number in range(PARTITIONS)]
    [members] = [row for row in groups("--describe", "--group", topic, "--members", "--verbose") if row[0] == topic]
    assert str(PARTITIONS) in members
    [state] = [row for row in groups("--describe", "--group", topic, "--state") if row[0] == topic]
    assert {"Stable", "uniform"} <= set(state)
    listed = [line.split() for line in tool("GroupsCommand", *brings, "--list").splitlines()]
    assert [topic, "Consumer", "consumer"] in listed
    member.close()
    eventually(lambda: "Empty" in str(groups("--describe", "--group", topic, "--state")))
    assert any(row[:2] == [topic, topic] for row in groups(
        "--reset-offsets", "--group", topic, "--topic", topic, "--to-earliest", "--execute"
    ))  # fmt: skip
    assert wire.committed(topic, topic) == 0
    groups("--delete", "--group", topic)
    assert wire.committed(topic, topic) == -1


@pytest.mark.maven
@pytest.mark.parametrize("strategy", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_members_of_both_protocols_share_a_group(
    java: Command,
    started: Callable[[Sequence[str]], Program],
    running: Server,
    wire: Wire,
    topic: str,
    eventually: Callable[[Callable[[], object]], None],
    strategy: str,
) -> None:
    wire.create(topic, PARTITIONS)
    newer = java(running.kafka, topic, topic)
    older = [newer[0], f"-Dstrategy={strategy}", *newer[1:]]
    first = started(older)
    eventually(lambda: first.owned == all_of(topic))
    for number in range(PARTITIONS):
        wire.produce(topic, batch(b"one %d" % number), partition=number)
    eventually(lambda: len(first.read()) == PARTITIONS)
    second = started(newer)
    eventually(lambda: halves(topic, first, second))
    for number in range(PARTITIONS):
        wire.produce(topic, batch(b"two %d" % number), partition=number)
    eventually(lambda: len(first.read()) + len(second.read()) >= 2 * PARTITIONS)
    second.close()
    eventually(lambda: first.owned == all_of(topic))
    third = started(newer)
    eventually(lambda: halves(topic, first, third))
    first.close()
    eventually(lambda: third.owned == all_of(topic))
    values = [value for member in (first, second, third) for value in member.read()]
    assert sorted(values) == sorted({*values})
    assert len(values) == 2 * PARTITIONS
