"""Three brokers over one Redis: ownership, and effects on clients when a broker leaves or joins."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.harness.brokers import Brokers, OverOneRedis, brokers
from tests.harness.ledger import Ledger
from tests.harness.member import Member
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch, fetch_request, produce_request

from headrace.kafka.errors import Code
from headrace.protocol.messages import HeartbeatRequest

PARTITIONS = 6


@pytest.fixture(scope="module")
def three() -> Iterator[OverOneRedis]:
    with brokers(3) as running:
        yield running


@pytest.fixture
def topic(three: Brokers) -> str:
    return three.new_topic(PARTITIONS)


def test_all_of_them_name_the_same_leaders_and_coordinators(three: Brokers, topic: str) -> None:
    groups = [f"group-{number}" for number in range(12)]

    def told() -> list[tuple[dict[int, int], list[int]]]:
        return [
            (three.leaders(node, topic), [three.coordinator(node, group) for group in groups]) for node in three.running
        ]

    wait_for(lambda: all(each == told()[0] for each in told()), "one opinion")
    leaders, coordinators = told()[0]
    assert set(leaders.values()) <= {1, 2, 3}
    assert set(coordinators) == {1, 2, 3}


def test_who_does_not_lead_a_partition_says_so(three: Brokers, topic: str) -> None:
    def codes(node: int) -> tuple[int, int, int]:
        with Wire(three.addresses[node]) as wire:
            produced = wire.produce(topic, batch(b"x")).error_code
            return produced, wire.fetch(topic, 0).error_code, wire.offset(topic, -1).error_code

    def one_takes_it() -> bool:
        leader = three.leaders(1, topic)[0]
        wanted = {node: Code.NONE if node == leader else Code.NOT_LEADER_OR_FOLLOWER for node in three.running}
        return all(codes(node) == (code,) * 3 for node, code in wanted.items())

    wait_for(one_takes_it, "its leader alone to take a batch and to tell of it")


def test_who_does_not_lead_a_partition_names_its_leader(three: Brokers, topic: str) -> None:
    """With its address, so that clients need no Metadata (KIP-951)."""

    def named(node: int) -> list[Any]:
        with Wire(three.addresses[node]) as wire:
            topic_id = wire.topic_id(topic)
            found = []
            for version in (10, 13):
                produced = wire.ask(produce_request(topic, batch(b"x"), topic_id=topic_id), version)
                found.append((produced.responses[0].partition_responses[0], produced.node_endpoints))
            for version, place in ((15, topic_id), (16, topic_id), (18, topic_id)):
                fetched = wire.ask(fetch_request([(place, 0, 0)]), version)
                found.append((fetched.responses[0].partitions[0], fetched.node_endpoints))
            return found

    def they_name_it() -> bool:
        with Wire(three.addresses[1]) as wire:
            known = wire.metadata(topic)
        [partition] = [each for each in known.topics[0].partitions if each.partition_index == 0]
        addresses = {each.node_id: (each.host, each.port) for each in known.brokers}
        leader, epoch = partition.leader_id, partition.leader_epoch
        if leader < 0:
            return False
        for node in three.running:
            for number, (answer, nodes) in enumerate(named(node)):
                # The version before the one that has it, and the leader itself, name no leader.
                without = node == leader or number == 2
                if answer.error_code != (Code.NONE if node == leader else Code.NOT_LEADER_OR_FOLLOWER):
                    return False
                told = answer.current_leader
                if (None if told is None else (told.leader_id, told.leader_epoch)) != (
                    None if without else (leader, epoch)
                ):
                    return False
                if [(each.node_id, each.host, each.port) for each in nodes] != (
                    [] if without else [(leader, *addresses[leader])]
                ):
                    return False
        return True

    wait_for(they_name_it, "the others to name the leader")


def test_who_does_not_coordinate_a_group_says_so(three: Brokers) -> None:
    group = f"group-{uuid4().hex[:8]}"
    request = HeartbeatRequest(group_id=group, generation_id=1, member_id="nobody")

    def code(node: int) -> int:
        found: int = three.asked(node, lambda wire: wire.ask(request, 4)).error_code
        return found

    def one_knows_it() -> bool:
        owner = three.coordinator(1, group)
        wanted = {node: Code.UNKNOWN_MEMBER_ID if node == owner else Code.NOT_COORDINATOR for node in three.running}
        return all(code(node) == each for node, each in wanted.items())

    wait_for(one_knows_it, "its coordinator alone to answer for it")


def test_a_topic_that_is_changed_here_is_changed_there(three: Brokers, topic: str) -> None:
    """Two brokers change one topic at a time, again and again: neither change is lost."""
    first, second = (AdminClient({"bootstrap.servers": three.addresses[node]}) for node in (1, 2))
    for round_ in range(5):
        asked: list[Future[None]] = []
        for admin, name in ((first, "retention.ms"), (second, "max.message.bytes")):
            entry = ConfigEntry(name, str(100_000 + round_), incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
            asked += admin.incremental_alter_configs([resource]).values()
        for each in asked:
            each.result(60)
        for node in three.running:
            admin = AdminClient({"bootstrap.servers": three.addresses[node]})

            def told(admin: AdminClient = admin) -> list[str]:
                (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
                config = found.result(60)
                return [config[name].value for name in ("retention.ms", "max.message.bytes")]

            wait_for(lambda told=told, round_=round_: told() == [str(100_000 + round_)] * 2, "both changes")  # type: ignore[misc]


def test_a_topic_that_is_deleted_is_gone_for_good(three: Brokers, topic: str) -> None:
    leader = three.leaders(1, topic)[0]
    other = next(node for node in three.running if node != leader)
    with Wire(three.addresses[leader]) as wire:
        assert wire.produce(topic, batch(b"of the first")).error_code == Code.NONE
        three.asked(other, lambda asking: asking.delete(topic))
        three.asked(other, lambda asking: asking.create(topic, PARTITIONS))

    def is_new(node: int) -> bool:
        # It may still return the earlier topic, which had as many partitions and other leaders.
        again = three.leaders(node, topic).get(0)
        return again in three.running and three.asked(again, lambda wire: wire.offset(topic, -1)).offset == 0

    for node in three.running:
        wait_for(lambda node=node: is_new(node), "the new topic without a record")  # type: ignore[misc]


def test_duplicate_node_ids_are_reported(three: OverOneRedis) -> None:
    command = [sys.executable, "-m", "headrace", "serve", "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    command += ["--redis", three.redis.url, "--set", "node.id=2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    line = ended.stderr.splitlines()[-1]
    assert "another server with node.id=2 is alive" in line
    assert f"pid {three.servers[2].pid}" in line


@pytest.mark.crash
def test_one_that_is_killed_is_missed_before_its_session_is_over() -> None:
    """Its neighbours see its connections end."""
    with brokers(3, broker_session_timeout_ms=3_600_000) as running:
        for node in (2, 3):
            running.servers[node].kill()
            running.agree([each for each in (1, 3) if each != node and running.servers[each].running])
        running.start(2)
        running.agree([1, 2])


def connected_to(http: str) -> int:
    """Number of connections of a listener, as Linux reports it."""
    port = f"0100007F:{int(http.rpartition(':')[2]):04X}"
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return sum(local == port and state == "01" for _, local, _, state, *_ in rows)


@pytest.mark.crash
def test_who_asks_in_the_moment_that_a_broker_ends_is_not_sent_to_it() -> None:
    """librdkafka asks when it loses its connection, and then for a second or two no more."""
    with brokers(3, broker_session_timeout_ms=3_600_000) as running:
        topic = next(name for _ in range(99) if 3 in running.led(name := running.new_topic(9), 9).values())
        wait_for(lambda: connected_to(running.servers[3].http) >= 2, "both neighbours to watch it")
        with Wire(running.addresses[3]) as client, Wire(running.addresses[1]) as other:
            client.metadata(topic)
            other.metadata(topic)
            os.kill(running.servers[3].pid, signal.SIGKILL)
            assert client.ends()
            found = other.metadata(topic)
        running.servers[3].kill()
        assert {each.leader_id for each in found.topics[0].partitions} <= {-1, 1, 2}
        assert {each.node_id for each in found.brokers} == {1, 2}


@pytest.mark.crash
def test_clients_go_on_while_brokers_die_sleep_leave_and_come_back(three: Brokers, topic: str) -> None:
    """An idempotent producer loses and doubles nothing, and a member keeps its place in its group."""
    # A request to a broker that sleeps is given up after this.
    with Ledger(three.kafka, topic, partitions=PARTITIONS, socket_timeout_ms=2_000) as ledger:
        ledger.send(2_000)
        ledger.settle()
        # Killed: others take over what it had.
        group = next(name for number in range(99) if three.coordinator(1, name := f"{topic}-{number}") == 2)
        with Member(three.addresses[2], group, topic) as member:
            member.join()
            generation, member_id = member.generation, member.member_id
        three.servers[2].kill()
        ledger.send(2_000)
        ledger.settle()
        three.agree([1, 3])
        owner = three.coordinator(1, group)
        request = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)
        wait_for(
            lambda: three.asked(owner, lambda wire: wire.ask(request, 4)).error_code == Code.NONE,
            "the member to be known where its group is now",
        )
        three.start(2)
        three.agree([1, 2, 3])
        ledger.send(2_000)
        ledger.settle()
        # Stopped until the others have taken over, then woken: what it still has may not land.
        os.kill(three.servers[1].pid, signal.SIGSTOP)
        try:
            ledger.send(2_000)
            three.agree([2, 3])
            ledger.settle()
        finally:
            os.kill(three.servers[1].pid, signal.SIGCONT)
        three.agree([1, 2, 3])
        # In order: it hands over before it goes.
        three.servers[3].stop()
        three.agree([1, 2])
        ledger.send(2_000)
        ledger.settle()
        three.start(3)
        three.agree([1, 2, 3])
        assert ledger.refused == {}
        assert ledger.acknowledged_count == sum(ledger.sent)
        ledger.check(three.kafka)


@pytest.mark.crash
def test_all_brokers_return_one_leader_for_a_leader_epoch(three: Brokers, topic: str) -> None:
    """While leadership moves: clients that hear two names for one epoch may stay at a broker that does not lead."""
    named: dict[tuple[int, int], set[int]] = {}
    newest: dict[int, dict[int, int]] = dict.fromkeys(three.running, dict.fromkeys(range(PARTITIONS), -1))

    def look(node: int) -> dict[int, int]:
        found = three.asked(node, lambda wire: wire.metadata(topic)).topics[0].partitions
        for each in found:
            known = each.error_code == Code.NONE
            assert known or (each.error_code, each.leader_id) == (Code.LEADER_NOT_AVAILABLE, -1)
            if known and each.leader_epoch >= 0:
                named.setdefault((each.partition_index, each.leader_epoch), set()).add(each.leader_id)
        epochs = {each.partition_index: each.leader_epoch for each in found}
        assert all(epoch >= newest[node][index] for index, epoch in epochs.items()), (node, newest[node], epochs)
        newest[node] = epochs
        # A leader without an announced epoch does not count below.
        return {each.partition_index: each.leader_id if each.leader_epoch >= 0 else -1 for each in found}

    def until_agreed(nodes: list[int]) -> dict[int, int]:
        """Ask them all, again and again, until all name one of these as each partition's leader."""
        deadline = time.monotonic() + 150
        while True:
            answers = [look(node) for node in nodes]
            if set(answers[0].values()) <= set(nodes) and all(leaders == answers[0] for leaders in answers):
                return answers[0]
            assert time.monotonic() < deadline, answers

    led = until_agreed([1, 2, 3])
    killed = led[0]
    alive = [node for node in three.running if node != killed]
    three.servers[killed].kill()
    until_agreed(alive)
    three.start(killed)
    wait_for(lambda: all(look(node) == led for node in (1, 2, 3)), "each to lead again what it led before")
    assert {epoch: nodes for epoch, nodes in named.items() if len(nodes) > 1} == {}
    # Each partition that moved had one leader after the other: there, away, and back.
    moved = [index for index, node in led.items() if node == killed]
    assert all(len([1 for partition, _ in named if partition == index]) >= 3 for index in moved)
