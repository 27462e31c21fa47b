"""PutMessages on a real server, and the same records through Kafka."""

import base64
import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, TopicPartition
from tests.harness.wire import Wire
from tests.oci.conftest import Api, details, new_stream
from tests.oci.messages import at

from headrace.oci.errors import REQUEST_TOO_LARGE
from headrace.testing import InProcessServer

MIB = 1 << 20


# Putting
def test_entries_are_in_the_order_of_the_request_and_failures_are_counted(api: Api, wide: str) -> None:
    keys = [b"key-%d" % (number % 7) for number in range(40)]
    before = api.call("GET", "/nothing").headers["date"]
    result = api.put(wide, *((key, b"%d" % place) for place, key in enumerate(keys)))

    assert result.keys() == {"failures", "entries"}
    assert result["failures"] == 0
    places: dict[bytes, str] = {}
    offsets: dict[str, list[int]] = {}
    for key, entry in zip(keys, result["entries"], strict=True):
        assert entry.keys() == {"partition", "offset", "timestamp"}
        assert places.setdefault(key, entry["partition"]) == entry["partition"]
        offsets.setdefault(entry["partition"], []).append(entry["offset"])
        assert abs(datetime.fromisoformat(entry["timestamp"]) - _http_date(before)) < timedelta(seconds=30)
    assert len(offsets) > 1
    assert all(found == list(range(len(found))) for found in offsets.values())


def _http_date(text: str) -> datetime:
    return datetime.strptime(text, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)


def test_messages_without_key_are_spread_and_stay_without(api: Api, wide: str) -> None:
    result = api.put(wide, *[(None, b"%d" % number) for number in range(200)])
    found = {entry["partition"] for entry in result["entries"]}
    assert found == {"0", "1", "2", "3"}
    for partition in range(4):
        messages = api.get(wide, api.cursor(wide, partition=partition)).json
        assert messages
        assert all(message["key"] is None for message in messages)


def test_a_body_of_another_form_means_the_same(api: Api, wide: str) -> None:
    messages = [(None if number % 3 == 0 else b"%d" % number, bytes([number, 255])) for number in range(60)]
    usual = json.dumps(details(*messages))
    escaped = usual.replace("/", "\\/").replace('"value"', '"\\u0076alue"')
    more = json.dumps({"x": [{}], "messages": [{"n": 1.5} | each for each in details(*messages)["messages"]]}, indent=1)
    keyed = []
    for form in (usual, escaped, more):
        entries = api.done("POST", f"/streams/{wide}/messages", form.encode())["entries"]
        keyed.append([entry["partition"] for entry, (key, _) in zip(entries, messages, strict=True) if key is not None])
    assert keyed[0] == keyed[1] == keyed[2]
    got = [message for partition in range(4) for message in api.get(wide, api.cursor(wide, partition=partition)).json]
    expected = [(each.get("key"), each["value"]) for each in details(*messages)["messages"]] * 3
    assert Counter((message["key"], message["value"]) for message in got) == Counter(expected)


def test_the_largest_message_and_the_largest_request(api: Api, stream: str) -> None:
    assert api.put(stream, (None, bytes(MIB)))["failures"] == 0
    assert api.put(stream, (bytes(256), bytes(MIB - 256)))["failures"] == 0
    assert api.put(stream, *[(b"k", b"v")] * (MIB // 2))["failures"] == 0
    assert api.values(stream, api.cursor(stream)) == [bytes(MIB)]
    refused: list[list[tuple[bytes | None, bytes]]] = [
        [(None, bytes(MIB + 1))],
        [(b"k", bytes(MIB))],
        [(None, bytes(MIB // 2)), (None, bytes(MIB // 2)), (None, b"1")],
        [(b"k" * 255, b"v")] * 4097,
    ]
    for messages in refused:
        reply = api.call("POST", f"/streams/{stream}/messages", details(*messages))
        assert reply.error == (400, "InvalidParameter", REQUEST_TOO_LARGE)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "Invalid field messages: at least one message is needed"),
        ([{"value": ""}], "Invalid field messages[0].value: it is empty"),
        ([{"value": "YQ=="}, {"value": "YQ==", "key": base64.b64encode(bytes(257)).decode()}],
         "Invalid field messages[1].key: more than 256 bytes"),
        ([{"value": "YQ"}], "Invalid field messages[0].value: Invalid base64 encoded string"),
        ([{"value": "-_-_"}], "Invalid field messages[0].value: Invalid base64 encoded string"),
    ],
)  # fmt: skip
def test_messages_that_are_refused(api: Api, stream: str, messages: object, message: str) -> None:
    reply = api.call("POST", f"/streams/{stream}/messages", {"messages": messages})
    assert reply.error == (400, "InvalidParameter", message)
    assert api.values(stream, api.cursor(stream)) == []


def test_a_small_max_message_bytes_is_for_kafkas_clients_only(oci_server: InProcessServer, api: Api) -> None:
    with Wire(oci_server.kafka) as kafka:
        kafka.create("bounded", 1, max_message_bytes=100)
    listed = api.done("GET", "/streams?compartmentId=x&name=bounded")
    assert api.put(listed[0]["id"], (None, bytes(1000)))["failures"] == 0


@pytest.fixture
def consumer(oci_server: InProcessServer) -> Iterator[Consumer]:
    made = Consumer({"bootstrap.servers": oci_server.kafka, "group.id": "beside", "auto.offset.reset": "earliest"})
    yield made
    made.close()


def test_what_is_put_is_consumed_through_kafka(api: Api, consumer: Consumer) -> None:
    stream, name = new_stream(api)
    entries = api.put(stream, (b"k", b"first"), (None, b"second"))["entries"]
    consumer.assign([TopicPartition(name, 0, 0)])
    found = consumer.consume(2, 60)
    assert [(message.key(), message.value(), message.offset()) for message in found] == [
        (b"k", b"first", 0), (None, b"second", 1),
    ]  # fmt: skip
    for message, entry in zip(found, entries, strict=True):
        kind, time_ms = message.timestamp()
        assert kind == TIMESTAMP_CREATE_TIME
        assert datetime.fromisoformat(entry["timestamp"]) == datetime.fromisoformat(at(time_ms))
