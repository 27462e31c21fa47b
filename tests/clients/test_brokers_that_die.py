"""Every real client on three brokers over a Redis Cluster, while the broker that it needs most is killed.

`make test LANE=redis-cluster` runs this, `make test LANE=apt` the same with kcat.
"""

import contextlib
import itertools
import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import oci.retry
import pytest
from oci.streaming.models import CreateGroupCursorDetails, PutMessagesDetails, PutMessagesDetailsEntry
from tests.clients.conftest import ADAPTERS, FROM_DEBIAN
from tests.clients.oci.test_command_line import CommandLine
from tests.harness.brokers import Brokers, brokers_at
from tests.harness.clients import Client, Member, Record
from tests.harness.clients.confluent import Confluent
from tests.harness.redis_cluster import RedisCluster
from tests.harness.waiting import wait_for

from headrace.cli import main
from headrace.testing.oci import OciClients, text_of

PARTITIONS = 6
EACH = 20
PATIENCE_S = 150
CLIENTS: dict[str, Callable[[str], Client]] = {
    **ADAPTERS,
    "librdkafka with KIP-848": partial(Confluent, group_protocol="consumer"),
}


@pytest.fixture(scope="module")
def three() -> Iterator[Brokers]:
    settings = {"broker_session_timeout_ms": 1_500, "broker_heartbeat_interval_ms": 200}
    with RedisCluster(calm=True) as cluster, brokers_at(cluster.url, 3, **settings) as running:
        yield running


@pytest.fixture
def whole(three: Brokers) -> Iterator[Brokers]:
    """All of them run, before the test and after it."""
    yield three
    for node in three.servers.keys() - set(three.running):
        three.start(node)
    three.agree(list(three.servers))


@pytest.fixture
def topic(whole: Brokers) -> str:
    return whole.new_topic(PARTITIONS)


def untaken(member: Member, wanted: set[bytes]) -> set[bytes]:
    """Poll until every one has come, or patience is at its end; those that have not."""
    missing = set(wanted)
    deadline = time.monotonic() + PATIENCE_S
    while missing and time.monotonic() < deadline:
        missing -= {record.value for record in member.poll(0.1) if record.value is not None}
    return missing


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.apt if name in FROM_DEBIAN else pytest.mark.redis_cluster)
        for name in CLIENTS
    ],
)
def test_a_kafka_client_goes_on(whole: Brokers, topic: str, name: str) -> None:
    client = CLIENTS[name](whole.kafka)
    sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]

    def send(what: str) -> set[bytes]:
        for partition in range(PARTITIONS):
            values = [f"{what} {partition} {number}".encode() for number in range(EACH)]
            client.send(topic, [Record(value=value) for value in values], partition=partition, idempotent=True)
            sent[partition] += values
        return {value for each in sent for value in each[-EACH:]}

    with client.member(topic, topic) as member:

        def take(what: str) -> None:
            assert untaken(member, send(what)) == set()
            member.commit()

        take("before")
        # The group's coordinator, which leads partitions, too.
        killed = whole.coordinator(1, topic)
        whole.servers[killed].kill()
        take("after")
        whole.start(killed)
        whole.agree(list(whole.servers))
        take("again")
    for partition, values in enumerate(sent):
        found = client.read(topic, len(values), partition=partition)
        assert [(record.offset, record.value) for record in found] == list(enumerate(values))


@pytest.mark.redis_cluster
def test_oracles_sdk_goes_on(whole: Brokers) -> None:
    """As it is, with its own retries, at one broker while another one dies."""
    name = f"stream-{uuid4().hex[:8]}"
    https = {node: each.http for node, each in whole.servers.items()}
    stream = str(OciClients(https[1]).create_stream(name, PARTITIONS).id)
    killed = whole.coordinator(1, f"{name}-group")
    asked = next(node for node in whole.servers if node != killed)
    client = OciClients(https[asked]).stream_client(retry_strategy=oci.retry.DEFAULT_RETRY_STRATEGY)
    details = CreateGroupCursorDetails(group_name=f"{name}-group", instance_name="one", type="TRIM_HORIZON")
    cursor = client.create_group_cursor(stream, details).data.value
    sent: set[str] = set()
    seen: set[str] = set()

    def put(count: int) -> None:
        values = [f"value-{len(sent) + number}" for number in range(count)]
        entries = [PutMessagesDetailsEntry(key=_encoded(value), value=_encoded(value)) for value in values]
        left = entries
        deadline = time.monotonic() + PATIENCE_S
        while left:
            assert time.monotonic() < deadline, f"{len(left)} messages could not be put"
            told = client.put_messages(stream, PutMessagesDetails(messages=left)).data.entries
            left = [entry for entry, answer in zip(left, told, strict=True) if answer.error]
        sent.update(values)

    def read() -> bool:
        nonlocal cursor
        answer = client.get_messages(stream, cursor)
        seen.update(text_of(each.value) for each in answer.data)
        cursor = answer.headers["opc-next-cursor"]
        return seen == sent

    put(60)
    wait_for(read, "all to be got")
    whole.servers[killed].kill()
    put(60)
    wait_for(read, "all to be got from the others")


@pytest.mark.redis_cluster
def test_both_command_lines_go_on(
    whole: Brokers, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(CommandLine(tmp_path, whole.servers[1].http)) as line:
        made = line(
            f"oci streaming admin stream create --name cli-{topic} --partitions 3 "
            f"--compartment-id ocid1.compartment.oc1..cli --endpoint {whole.servers[1].http}"
        )
        stream = made["data"]["id"]
        numbers = itertools.count()

        def oci_put() -> bool:
            messages = json.dumps([{"key": _encoded("k"), "value": _encoded(f"{next(numbers)}")}])
            told = line(
                f"oci streaming stream message put --stream-id {stream} --messages '{messages}' "
                f"--endpoint {whole.servers[1].http}"
            )
            return int(told["data"]["failures"]) == 0

        def lines(*arguments: str) -> list[str]:
            assert main.run([*arguments, "--bootstrap", whole.kafka]) == 0
            return capsys.readouterr().out.splitlines()

        assert oci_put()
        whole.servers[2].kill()
        wait_for(oci_put, "the leader to be another one")
        whole.agree([1, 3])
        # A leader that is dead, or on its way, is not waited for.
        assert any(topic in each for each in lines("topics", "list"))
        described = json.loads("\n".join(lines("topics", "describe", topic, "--json")))
        assert {each["leader"] for each in described["partitions"]} <= {1, 3}


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()
