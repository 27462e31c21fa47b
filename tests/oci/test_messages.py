"""PutMessages, CreateCursor and GetMessages on a real server, and the same records through Kafka."""

import base64
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, Producer, TopicPartition
from tests.harness.wire import Wire
from tests.oci.conftest import Api, details, new_stream

from headrace.oci.errors import CURSOR_BEHIND, CURSOR_EXPIRED, CURSOR_INVALID, REQUEST_TOO_LARGE
from headrace.testing import InProcessServer

MIB = 1 << 20


def at(time_ms: int) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)).isoformat()


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


# Reading


def test_a_message_is_told_as_the_service_tells_it(api: Api) -> None:
    stream, name = new_stream(api)
    entry = api.put(stream, (b"k\x00", b"v\xff"))["entries"][0]
    reply = api.get(stream, api.cursor(stream))
    assert reply.json == [
        {"stream": name, "partition": "0", "key": "awA=", "value": "dv8=", "offset": 0, "timestamp": entry["timestamp"]}
    ]
    assert api.get(stream, reply.next_cursor).json == []


def test_limit_and_bytes_bound_an_answer_and_the_next_cursor_goes_on(api: Api, stream: str) -> None:
    for batch in range(4):
        api.put(stream, *[(None, b"%d" % (batch * 300 + number)) for number in range(300)])
    cursor = api.cursor(stream)
    found: list[bytes] = []
    for limit in (1, 7, 299, 500, 10_000):
        reply = api.get(stream, cursor, limit)
        assert len(reply.json) == min(limit, 1200 - len(found))
        found += [base64.b64decode(message["value"]) for message in reply.json]
        cursor = reply.next_cursor
    assert found == [b"%d" % number for number in range(1200)]


def test_without_limit_a_budget_holds_and_a_larger_message_comes_alone(api: Api, stream: str) -> None:
    for size in (400_000, 400_000, 400_000, MIB, 10):
        api.put(stream, (None, bytes(size)))
    cursor = api.cursor(stream)
    sizes = []
    while found := (reply := api.get(stream, cursor)).json:
        sizes.append([len(base64.b64decode(message["value"])) for message in found])
        cursor = reply.next_cursor
    assert sizes == [[400_000, 400_000], [400_000], [MIB], [10]]


@pytest.mark.parametrize("limit", ["0", "10001", "-1", "x", "", "1.5", "9" * 30])
def test_a_limit_is_one_to_ten_thousand(api: Api, stream: str, limit: str) -> None:
    reply = api.call("GET", f"/streams/{stream}/messages?cursor={api.cursor(stream)}&limit={limit}")
    assert reply.error[:2] == (400, "InvalidParameter")
    assert "limit" in reply.error[2]


def test_the_same_request_twice_gives_the_same(api: Api, stream: str) -> None:
    api.put(stream, *[(None, b"%d" % number) for number in range(10)])
    cursor = api.cursor(stream)
    assert api.values(stream, cursor, 4) == api.values(stream, cursor, 4)


def test_old_records_come_from_storage_and_new_ones_from_memory(api: Api) -> None:
    """The same bytes: what a restart left in the cache is nothing."""
    with InProcessServer(oci_auth="off") as server:
        first = Api(server.http)
        stream, _ = new_stream(first)
        values = [b"%d" % number for number in range(500)]
        for value in values:
            first.put(stream, (None, value))
        cursor = first.cursor(stream)
        from_memory = first.get(stream, cursor, 10_000).json
        rest = first.get(stream, cursor, 100).next_cursor
        first.close()
        server.restart()
        second = Api(server.http)
        # The cursor was signed before the restart.
        assert second.get(stream, cursor, 10_000).json == from_memory
        assert second.values(stream, rest) == values[100:]
        second.close()


# Cursors


def test_cursors_by_offset_have_bounds(api: Api, stream: str) -> None:
    def refused(kind: str, offset: int | None) -> tuple[int, str, str]:
        asked = {"partition": "0", "type": kind} | ({} if offset is None else {"offset": offset})
        return api.call("POST", f"/streams/{stream}/cursors", asked).error

    for kind in ("AT_OFFSET", "AFTER_OFFSET"):
        assert refused(kind, 0) == (400, "InvalidParameter", "Invalid field offset: the partition has no messages")
    api.put(stream, *[(None, b"%d" % number) for number in range(5)])
    assert api.values(stream, api.cursor(stream, "AT_OFFSET", offset=4)) == [b"4"]
    assert api.values(stream, api.cursor(stream, "AFTER_OFFSET", offset=2)) == [b"3", b"4"]
    after_last = api.cursor(stream, "AFTER_OFFSET", offset=4)
    assert api.values(stream, after_last) == []
    api.put(stream, (None, b"5"))
    assert api.values(stream, after_last) == [b"5"]
    for kind in ("AT_OFFSET", "AFTER_OFFSET"):
        for offset in (-1, 6, 2**63, 2**200):
            assert "between the oldest message, 0, and the latest, 5" in refused(kind, offset)[2]
        assert refused(kind, None)[1] == "MissingParameter"


def test_latest_and_trim_horizon(api: Api, stream: str) -> None:
    api.put(stream, (None, b"before"))
    latest = api.cursor(stream, "LATEST")
    api.put(stream, (None, b"after"))
    assert api.values(stream, latest) == [b"after"]
    assert api.values(stream, api.cursor(stream)) == [b"before", b"after"]


def test_a_time_in_the_future_is_waited_for(oci_server: InProcessServer, api: Api, stream: str) -> None:
    """Records written through Kafka bring their time along, so that the future can be had now."""
    now = int(datetime.now(UTC).timestamp() * 1000)
    cursor = api.cursor(stream, "AT_TIME", time=at(now + 60_000))
    api.put(stream, (None, b"too early"))
    reply = api.get(stream, cursor)
    assert reply.json == []
    _produce(oci_server, _name(api, stream), [(None, b"at last", now + 60_000), (None, b"and on", now)])
    assert api.values(stream, cursor) == [b"at last", b"and on"]
    assert api.values(stream, reply.next_cursor) == [b"at last", b"and on"]
    assert api.values(stream, api.get(stream, cursor, 1).next_cursor) == [b"and on"]


def test_at_time_begins_with_the_first_message_that_is_not_older(oci_server: InProcessServer, api: Api) -> None:
    stream, name = new_stream(api)
    now = int(datetime.now(UTC).timestamp() * 1000) - 100_000
    _produce(oci_server, name, [(None, b"%d" % number, now + 1000 * number) for number in range(5)])
    assert api.values(stream, api.cursor(stream, "AT_TIME", time=at(now + 1001))) == [b"2", b"3", b"4"]
    assert len(api.values(stream, api.cursor(stream, "AT_TIME", time="1960-01-01T00:00:00Z"))) == 5
    reply = api.call("POST", f"/streams/{stream}/cursors", {"partition": "0", "type": "AT_TIME"})
    assert reply.error == (400, "MissingParameter", "Missing field time, which AT_TIME needs")


@pytest.mark.parametrize("partition", ["1", "-1", "x", "", "00000000000", "²", " 0", "0x0", "1" * 40])
def test_a_partition_that_is_not_there(api: Api, stream: str, partition: str) -> None:
    reply = api.call("POST", f"/streams/{stream}/cursors", {"partition": partition, "type": "LATEST"})
    assert reply.error[:2] == (400, "InvalidParameter")
    assert "partition" in reply.error[2]


def test_garbage_foreign_and_changed_cursors_are_invalid(api: Api, stream: str) -> None:
    other, _ = new_stream(api)
    own, foreign = api.cursor(stream), api.cursor(other)
    for cursor in ("x", own[:-1], own + "A", own[1:], own.swapcase(), foreign, "A" * 1024, "ü", own + "=" * 1000):
        assert api.get(stream, cursor).error == (400, "InvalidParameter", CURSOR_INVALID)
        for what in ("commit", "heartbeat"):
            assert api.consumer(what, stream, cursor).error == (400, "InvalidParameter", CURSOR_INVALID)
    for what in ("commit", "heartbeat"):
        assert api.consumer(what, stream, own).error == (400, "InvalidParameter", CURSOR_INVALID)
    assert api.call("GET", f"/streams/{stream}/messages").error == (
        400, "MissingParameter", "Missing query parameter cursor",
    )  # fmt: skip


def test_messages_that_retention_took_are_told_about() -> None:
    with InProcessServer(oci_auth="off", oci_cursor_expiry_ms=10**9) as server:
        mine = Api(server.http)
        stream, _ = new_stream(mine)
        for number in range(5):
            mine.put(stream, (None, b"%d" % number))
        cursors = [mine.cursor(stream), mine.cursor(stream, "AT_OFFSET", offset=3)]
        server.clock.advance(hours=23)
        for number in range(5, 10):
            mine.put(stream, (None, b"%d" % number))
        kept = mine.cursor(stream, "AT_OFFSET", offset=6)
        server.clock.advance(hours=2)
        while mine.get(stream, cursors[0]).status == 200:
            server.clock.advance(minutes=5)
        for cursor in cursors:
            assert mine.get(stream, cursor).error == (400, "InvalidParameter", CURSOR_BEHIND)
        assert mine.values(stream, kept) == [b"6", b"7", b"8", b"9"]
        assert mine.values(stream, mine.cursor(stream)) == [b"5", b"6", b"7", b"8", b"9"]
        asked = {"partition": "0", "type": "AT_OFFSET", "offset": 4}
        assert "oldest message, 5" in mine.call("POST", f"/streams/{stream}/cursors", asked).error[2]
        mine.close()


def test_cursors_expire(api: Api) -> None:
    with InProcessServer(oci_auth="off", oci_cursor_expiry_ms=60_000) as server:
        mine = Api(server.http)
        stream, _ = new_stream(mine)
        cursors = [mine.cursor(stream), mine.group_cursor(stream, "g", timeoutInMs=600_000)]
        # The time that the test takes comes on top.
        server.clock.advance(seconds=35)
        following = [mine.get(stream, cursor).next_cursor for cursor in cursors]
        server.clock.advance(seconds=35)
        for cursor in cursors:
            assert mine.get(stream, cursor).error == (400, "InvalidParameter", CURSOR_EXPIRED)
        assert mine.consumer("heartbeat", stream, cursors[1]).error[2] == CURSOR_EXPIRED
        assert [mine.get(stream, cursor).status for cursor in following] == [200, 200]
        mine.close()


# Beside Kafka


def _name(api: Api, stream: str) -> str:
    return str(api.done("GET", f"/streams/{stream}")["name"])


def _produce(
    server: InProcessServer,
    topic: str,
    records: Sequence[tuple[bytes | None, bytes | None, int]],
    codec: str = "none",
    headers: dict[str, str | bytes | None] | None = None,
) -> None:
    producer = Producer({"bootstrap.servers": server.kafka, "compression.codec": codec, "linger.ms": 60_000})
    for key, value, time_ms in records:
        producer.produce(topic, value, key, partition=0, timestamp=time_ms, headers=headers or {})
    assert producer.flush(60) == 0


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


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_through_kafka_is_got(oci_server: InProcessServer, api: Api, codec: str) -> None:
    stream, name = new_stream(api)
    now = int(datetime.now(UTC).timestamp() * 1000) - 5_000
    records = [(b"key-%d" % number, b"value-%d" % number * 20, now + number) for number in range(300)]
    _produce(oci_server, name, records, codec, {"not": b"shown"})
    cursor = api.cursor(stream)
    found = []
    while messages := (reply := api.get(stream, cursor, 70)).json:
        found += messages
        cursor = reply.next_cursor
    assert [
        (base64.b64decode(each["key"]), base64.b64decode(each["value"]), datetime.fromisoformat(each["timestamp"]))
        for each in found
    ] == [(key, value, datetime.fromisoformat(at(time))) for key, value, time in records]
    assert [each["offset"] for each in found] == list(range(300))
    assert found[0].keys() == {"stream", "partition", "key", "value", "offset", "timestamp"}


def test_a_record_without_value_has_an_empty_one(oci_server: InProcessServer, api: Api) -> None:
    stream, name = new_stream(api)
    _produce(oci_server, name, [(b"deleted", None, 5), (b"", b"", 5)])
    assert [(each["key"], each["value"]) for each in api.get(stream, api.cursor(stream)).json] == [
        ("ZGVsZXRlZA==", ""), ("", ""),
    ]  # fmt: skip


def test_with_log_append_time_both_listeners_tell_the_servers_time(oci_server: InProcessServer, api: Api) -> None:
    with Wire(oci_server.kafka) as kafka:
        kafka.create("stamped", 1, message_timestamp_type="LogAppendTime")
    stream = api.done("GET", "/streams?compartmentId=x&name=stamped")[0]["id"]
    entry = api.put(stream, (None, b"mine"))["entries"][0]
    _produce(oci_server, "stamped", [(None, b"theirs", 5)])
    told = [each["timestamp"] for each in api.get(stream, api.cursor(stream)).json]
    assert told[0] == entry["timestamp"]
    assert told[1] >= told[0]


def test_records_that_nobody_can_read_are_passed_over(oci_server: InProcessServer, api: Api) -> None:
    from struct import pack  # noqa: PLC0415

    from headrace.records.accelerator import crc32c  # noqa: PLC0415
    from headrace.records.build import build  # noqa: PLC0415

    stream, name = new_stream(api)
    api.put(stream, (None, b"before"))
    broken = build([(None, b"lost", 5, ())])
    broken[-6:] = b"\xff" * 6
    broken[17:21] = pack(">I", crc32c(bytes(broken[21:])))
    with Wire(oci_server.kafka) as kafka:
        kafka.produce(name, bytes(broken))
    api.put(stream, (None, b"after"))
    assert api.values(stream, api.cursor(stream)) == [b"before", b"after"]
