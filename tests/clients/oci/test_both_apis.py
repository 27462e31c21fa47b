"""What goes in through one API comes out of the other: records, topics and groups are the same."""

import base64
import datetime as dt
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.clients import CODECS, ClientFailed, Codec, Received, Record
from tests.harness.clients.aio import AioKafka
from tests.harness.clients.confluent import Confluent
from tests.harness.clients.confluent_admin import ConfluentAdmin
from tests.harness.clients.kafka_python import KafkaPython
from tests.harness.clients.kafka_python_admin import KafkaPythonAdmin

import oci
from headrace.testing import MovableClock
from headrace.testing.oci import GroupReader, OciClients, put, text_of

models = oci.streaming.models
Client = Any
KAFKA_CLIENTS = [Confluent, KafkaPython, AioKafka]


@pytest.fixture
def kafka(headrace_kafka: str) -> Confluent:
    return Confluent(headrace_kafka)


def everything(client: Client, stream: Any, partition: int = 0) -> list[Any]:
    start = models.CreateCursorDetails(partition=str(partition), type="TRIM_HORIZON")
    cursor = client.create_cursor(stream.id, start).data.value
    found: list[Any] = []
    while True:
        answer = client.get_messages(stream.id, cursor)
        if not answer.data:
            return found
        found += answer.data
        cursor = answer.headers["opc-next-cursor"]


def at(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)


def headrace(*arguments: str, kafka: str) -> str:
    command = [sys.executable, "-m", "headrace", *arguments, "--kafka", kafka]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def within(seconds: float, question: Callable[[], object]) -> None:
    deadline = time.monotonic() + seconds
    while not question():
        assert time.monotonic() < deadline, "it has not come true"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("library", KAFKA_CLIENTS, ids=lambda library: library.name)
def test_kafka_to_oci(library: Any, codec: Codec, headrace_kafka: str, client: Client, stream: Any) -> None:
    """Times are those of the records: what Kafka's producer said."""
    now = time.time_ns() // 1_000_000
    writer = library(headrace_kafka)
    every = bytes(range(256))
    sent = [
        Record(key=b"key", value=b"value", timestamp=now - 5),
        Record(key=None, value=b"without a key", timestamp=now - 4),
        Record(key=every, value=every * 100, timestamp=now - 3),
        Record(key=b"headers", value=b"that OCI cannot show", headers=(("a", b"1"), ("b", b"")), timestamp=now - 2),
        *(Record(key=b"%d" % number, value=b"x" * number, timestamp=now) for number in range(1, 200)),
    ]
    if not writer.sets_timestamps:
        sent = [Record(key=one.key, value=one.value, headers=one.headers) for one in sent]
    writer.send(stream.name, sent, codec=codec)
    found = everything(client, stream)

    assert [message.offset for message in found] == list(range(len(sent)))
    decoded = [(message.key and base64.b64decode(message.key), base64.b64decode(message.value)) for message in found]
    assert decoded == [(one.key, one.value) for one in sent]
    if writer.sets_timestamps:
        assert [message.timestamp for message in found] == [at(one.timestamp or 0) for one in sent]
    assert [one.headers for one in writer.read(stream.name, 4)][3] == (("a", b"1"), ("b", b""))


@pytest.mark.parametrize("library", KAFKA_CLIENTS, ids=lambda library: library.name)
def test_oci_to_kafka(library: Any, headrace_kafka: str, client: Client, headrace_oci: OciClients) -> None:
    stream = headrace_oci.create_stream("s", 3)
    entries = [entry for number in range(20) for entry in put(client, stream.id, f"v{number}", key=f"k{number}")]
    entries += put(client, stream.id, "without a key")
    reader = library(headrace_kafka)
    found = {}
    for partition in range(3):
        count = sum(entry.partition == str(partition) for entry in entries)
        for record in reader.read("s", count, partition=partition):
            found[str(record.partition), record.offset] = record

    assert len(found) == len(entries)
    expected = [(f"k{number}".encode(), f"v{number}".encode()) for number in range(20)] + [(None, b"without a key")]
    for entry, (key, value) in zip(entries, expected, strict=True):
        record = found[entry.partition, entry.offset]
        assert (record.key, record.value, record.headers) == (key, value, ())
        assert at(record.timestamp) == entry.timestamp


def test_a_tombstone_is_an_empty_value(kafka: Confluent, client: Client, stream: Any) -> None:
    kafka.send(stream.name, [Record(key=b"k", value=None), Record(key=b"", value=b"")])
    found = everything(client, stream)

    assert [(message.key, message.value) for message in found] == [("aw==", ""), ("", "")]


def test_times_find_the_records_of_both_apis(
    kafka: Confluent, client: Client, stream: Any, headrace_clock: MovableClock
) -> None:
    put(client, stream.id, "of OCI")
    middle = headrace_clock.now_ms() + 60_000
    kafka.send(stream.name, [Record(value=b"of Kafka", timestamp=middle)])
    headrace_clock.advance(minutes=2)
    put(client, stream.id, "of OCI again")

    def values(time: dt.datetime) -> list[str]:
        details = models.CreateCursorDetails(partition="0", type="AT_TIME", time=time)
        cursor = client.create_cursor(stream.id, details).data.value
        return [text_of(message.value) for message in client.get_messages(stream.id, cursor).data]

    assert values(at(middle)) == ["of Kafka", "of OCI again"]
    assert values(at(middle + 1)) == ["of OCI again"]


def test_a_topic_made_through_kafka_is_a_stream(
    headrace_kafka: str, kafka: Confluent, headrace_oci: OciClients, admin: Any, client: Client
) -> None:
    kafka_admin = AdminClient({"bootstrap.servers": headrace_kafka})
    kafka_admin.create_topics([NewTopic("made-there", 2)])["made-there"].result()
    (found,) = admin.list_streams(compartment_id=headrace_oci.compartment_id, name="made-there").data
    stream = admin.get_stream(found.id).data

    assert (stream.partitions, stream.lifecycle_state) == (2, "ACTIVE")
    (entry,) = put(client, stream.id, "through OCI", key="k")
    (record,) = kafka.read("made-there", 1, partition=int(entry.partition))
    assert (record.key, record.value) == (b"k", b"through OCI")

    kafka_admin.delete_topics(["made-there"])["made-there"].result()
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        put(client, stream.id, "too late")
    assert caught.value.status == 404


def test_a_stream_made_through_oci_is_a_topic(headrace_kafka: str, headrace_oci: OciClients, admin: Any) -> None:
    stream = headrace_oci.create_stream("made-here", 5)
    kafka_admin = AdminClient({"bootstrap.servers": headrace_kafka})
    assert len(kafka_admin.list_topics(timeout=60).topics["made-here"].partitions) == 5
    admin.delete_stream(stream.id)
    assert "made-here" not in kafka_admin.list_topics(timeout=60).topics


def test_kafka_tools_see_an_oci_group(headrace_kafka: str, client: Client, stream: Any) -> None:
    put(client, stream.id, *(str(number) for number in range(10)))
    reader = GroupReader(client, stream.id, "readers", "instance-1")
    assert len(reader.get(4)) == 4
    reader.commit()

    assert "readers" in headrace("groups", "list", kafka=headrace_kafka)
    shown = headrace("groups", "describe", "readers", kafka=headrace_kafka)
    row = next(line for line in shown.splitlines() if line.startswith("one "))
    assert row.split()[:5] == ["one", "0", "4", "10", "6"]
    assert "one/instance-1" in row.split()
    assert "state stable" in shown.splitlines()[0]

    kafka_admin = AdminClient({"bootstrap.servers": headrace_kafka})
    described = kafka_admin.describe_consumer_groups(["readers"])["readers"].result()
    assert described.state.name == "STABLE"
    assert [member.client_id for member in described.members] == ["instance-1"]
    assigned = [part for member in described.members for part in member.assignment.topic_partitions]
    assert [(part.topic, part.partition) for part in assigned] == [("one", 0)]


@pytest.mark.parametrize("library", [ConfluentAdmin, KafkaPythonAdmin])
def test_kafka_tools_reset_an_oci_group(
    library: Any, headrace_kafka: str, client: Client, stream: Any, headrace_clock: MovableClock
) -> None:
    put(client, stream.id, *(str(number) for number in range(10)))
    reader = GroupReader(client, stream.id, "readers", "A")
    assert reader.values(4) == ["0", "1", "2", "3"]
    reader.commit()
    with library(headrace_kafka) as tool:
        assert tool.committed("readers") == {("one", 0): 4}
        with pytest.raises(ClientFailed):
            tool.move("readers", {("one", 0): 8})
        headrace_clock.advance(seconds=31)
        tool.move("readers", {("one", 0): 8})

        assert GroupReader(client, stream.id, "readers", "B").values() == ["8", "9"]
        headrace_clock.advance(seconds=31)
        tool.delete_group("readers")
    assert GroupReader(client, stream.id, "readers", "B").values(2) == ["0", "1"]


@pytest.mark.parametrize("library", KAFKA_CLIENTS, ids=lambda library: library.name)
def test_a_group_goes_on_through_the_other_api(
    library: Any, headrace_kafka: str, client: Client, stream: Any, headrace_clock: MovableClock
) -> None:
    put(client, stream.id, *(str(number) for number in range(30)))
    reader = GroupReader(client, stream.id, "readers", "A")
    assert reader.values(10) == [str(number) for number in range(10)]
    reader.commit()
    headrace_clock.advance(seconds=31)

    found: list[Received] = []
    with library(headrace_kafka).member("readers", "one") as member:
        deadline = time.monotonic() + 60
        while len(found) < 20 and time.monotonic() < deadline:
            found += member.poll(0.2, 10)
        member.commit()
    assert [int(record.value or b"") for record in found] == list(range(10, 30))
    put(client, stream.id, "30", "31")

    again = GroupReader(client, stream.id, "readers", "A")
    assert again.values() == ["30", "31"]


def test_both_apis_at_once_are_kept_apart(headrace_kafka: str, client: Client, stream: Any, kafka: Confluent) -> None:
    put(client, stream.id, *(str(number) for number in range(10)))
    reader = GroupReader(client, stream.id, "readers", "A")
    assert reader.values(4) == ["0", "1", "2", "3"]
    with kafka.member("readers", "one") as member, pytest.raises(ClientFailed) as refusal:
        within(60, lambda: member.poll(0.2))
    assert "INCONSISTENT" in str(refusal.value).upper()
    assert reader.values(4) == ["4", "5", "6", "7"]


def test_the_offsets_of_classic_members_are_not_set_while_they_read(
    client: Client, stream: Any, kafka: Confluent
) -> None:
    put(client, stream.id, "v")
    with kafka.member("readers", "one") as member:
        within(60, lambda: member.poll(0.2))
        GroupReader(client, stream.id, "readers", "A")
        with pytest.raises(oci.exceptions.ServiceError) as caught:
            client.update_group(stream.id, "readers", models.UpdateGroupDetails(type="LATEST"))
        assert (caught.value.status, caught.value.code) == (409, "Conflict")
        # Another name is another group.
        assert GroupReader(client, stream.id, "others", "A").values() == ["v"]
