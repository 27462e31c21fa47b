"""Oracle's SDK and librdkafka (`group.protocol=consumer`) in one group of one topic, of each kind."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire

from headrace.protocol.messages import ConsumerGroupDescribeRequest
from headrace.testing.oci import GroupReader, OciClients, put, text_of

GROUP = "one"
EVERYTHING = set(range(4))


@pytest.fixture(params=["log", "native"])
def four(request: pytest.FixtureRequest, headrace_kafka: str, headrace_oci: OciClients) -> Any:
    with Wire(headrace_kafka) as wire:
        wire.create("four", 4, headrace_storage=request.param)
    (stream,) = headrace_oci.admin_client().list_streams(compartment_id=headrace_oci.compartment_id, name="four").data
    return stream


@pytest.fixture
def join(headrace_kafka: str) -> Iterator[Callable[..., "Reader"]]:
    """Starts consumers of the stream, and ends them with the test."""
    readers: list[Reader] = []

    def start(protocol: str = "consumer") -> Reader:
        readers.append(Reader(headrace_kafka, "four", protocol))
        return readers[-1]

    yield start
    for reader in readers:
        # Also after a failure: it would stay in the group during the tests that follow.
        with contextlib.suppress(RuntimeError):
            reader.consumer.close()


class Reader:
    """A consumer."""

    def __init__(self, kafka: str, topic: str, protocol: str) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": kafka,
                "group.id": GROUP,
                "group.protocol": protocol,
                "client.id": "a-consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **({"partition.assignment.strategy": "cooperative-sticky"} if protocol == "classic" else {}),
            }
        )
        self.consumer.subscribe([topic])
        self.got: list[str] = []

    def poll(self) -> set[int]:
        """Read, commit, and return the partitions."""
        for message in self.consumer.consume(1_000, 0.1):
            assert message.error() is None, message.error()
            value = message.value()
            assert isinstance(value, bytes)
            self.got.append(value.decode())
            place = TopicPartition(message.topic() or "", message.partition() or 0, (message.offset() or 0) + 1)
            self.consumer.commit(offsets=[place], asynchronous=False)
        return {each.partition for each in self.consumer.assignment()}


class Instance:
    """An instance that reads what it can."""

    def __init__(self, oci: OciClients, stream: Any, name: str) -> None:
        self._client, self._stream = oci.stream_client(), stream
        self.name = name
        self._reader = GroupReader(self._client, stream.id, GROUP, name, timeout_in_ms=5_000)
        self.got: list[str] = []

    def poll(self) -> set[int]:
        """Read, commit, and return the partitions."""
        self.got += [text_of(each.value) for each in self._reader.get(100)]
        return {partition for partition, owner in owners(self._client, self._stream).items() if owner == self.name}


def owners(client: Any, stream: Any) -> dict[int, str | None]:
    """The owners that GetGroup shows."""
    found = client.get_group(stream.id, GROUP).data.reservations
    return {int(each.partition): each.reserved_instance for each in found}


def shared(*members: Reader | Instance) -> Callable[[], bool]:
    """Whether these members have everything, and none of them nothing."""

    def found() -> bool:
        shares = [member.poll() for member in members]
        return all(shares) and set().union(*shares) == EVERYTHING and sum(map(len, shares)) == len(EVERYTHING)

    return found


def headrace(*arguments: str, kafka: str) -> Any:
    command = [sys.executable, "-m", "headrace", *arguments, "--kafka", kafka, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_both_have_partitions_and_take_over_from_each_other(
    headrace_kafka: str, headrace_oci: OciClients, four: Any, join: Callable[..., Reader]
) -> None:
    client = headrace_oci.stream_client()
    instance = Instance(headrace_oci, four, "an-instance")
    wait_for(shared(instance), "the instance to have everything")
    consumer = join()
    began = time.monotonic()
    wait_for(shared(instance, consumer), "both to have partitions")
    assert time.monotonic() - began < 10
    values = {f"{number}" for number in range(200)}
    put(client, four.id, *values)
    wait_for(
        lambda: shared(instance, consumer)() and values == {*instance.got, *consumer.got}, "both to have everything"
    )
    assert len(instance.got) + len(consumer.got) == len(values), "no record was delivered twice"
    assert instance.got
    assert consumer.got

    _check_tools(headrace_kafka, client, four, instance, consumer)

    consumer.consumer.close()
    wait_for(shared(instance), "the instance to take over")
    assert len(instance.got) + len(consumer.got) == len(values), "what was committed is not repeated"
    again = join()
    wait_for(shared(instance, again), "both to have partitions again")
    # OCI has no operation to leave: the instance is silent.
    wait_for(shared(again), "the consumer to take over")
    more = {f"more {number}" for number in range(100)}
    put(client, four.id, *more)
    wait_for(lambda: again.poll() == EVERYTHING and more <= {*again.got}, "the consumer to read on")
    again.consumer.close()


def test_an_instance_joins_a_classic_group(
    headrace_kafka: str, headrace_oci: OciClients, four: Any, join: Callable[..., Reader]
) -> None:
    consumer = join("classic")
    wait_for(shared(consumer), "the consumer to have everything")
    instance = Instance(headrace_oci, four, "an-instance")
    wait_for(shared(instance, consumer), "both to have partitions")
    values = {f"{number}" for number in range(200)}
    put(headrace_oci.stream_client(), four.id, *values)
    wait_for(
        lambda: shared(instance, consumer)() and values == {*instance.got, *consumer.got}, "both to have everything"
    )
    assert len(instance.got) + len(consumer.got) == len(values), "no record was delivered twice"
    wait_for(shared(consumer), "the consumer to take over")
    (group,) = [each for each in headrace("groups", "list", kafka=headrace_kafka) if each["group"] == GROUP]
    assert group["type"] == "classic"
    consumer.consumer.close()


def _check_tools(kafka: str, client: Any, four: Any, instance: Instance, consumer: Reader) -> None:
    ids = {partition: owner for partition, owner in owners(client, four).items() if partition in consumer.poll()}
    (shown,) = {*ids.values()}
    assert shown is not None
    assert shown.startswith("a-consumer/")
    mine = instance.poll()
    with ThreadPoolExecutor(1) as other:
        asking = other.submit(headrace, "groups", "describe", GROUP, kafka=kafka)
        # On a busy machine, the command takes longer than the instance may be silent.
        wait_for(lambda: (instance.poll(), consumer.poll()) and asking.done(), "the description")
    described = asking.result()
    assert described["type"] == "consumer"
    assert {each["member"] for each in described["members"]} == {shown.partition("/")[2], "four/an-instance"}
    held = {each["client"]: {place["partition"] for place in each["partitions"]} for each in described["members"]}
    assert held == {"a-consumer": {*ids}, "an-instance": mine}
    assert {"group": GROUP, "state": "stable", "type": "consumer"} in headrace("groups", "list", kafka=kafka)
    with Wire(kafka) as wire:
        (group,) = wire.ask(ConsumerGroupDescribeRequest(group_ids=[GROUP]), 1).groups
    assert {each.client_id: each.member_type for each in group.members} == {"a-consumer": 1, "an-instance": -1}
    assert (group.group_state, group.assignor_name) == ("Stable", "uniform")
