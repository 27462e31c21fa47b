"""GetMessages on a real server, and the records of Kafka's producers."""

import base64
from datetime import UTC, datetime

import pytest
from tests.harness.wire import Wire
from tests.oci.conftest import Api, new_stream
from tests.oci.messages import at, produce

from headrace.oci.errors import CURSOR_BEHIND
from headrace.testing import InProcessServer

MIB = 1 << 20


# Reading
def test_a_message_has_the_form_of_the_service(api: Api) -> None:
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


@pytest.mark.parametrize("partition", ["1", "-1", "x", "", "00000000000", "²", " 0", "0x0", "1" * 40])
def test_a_partition_that_is_not_there(api: Api, stream: str, partition: str) -> None:
    reply = api.call("POST", f"/streams/{stream}/cursors", {"partition": partition, "type": "LATEST"})
    assert reply.error[:2] == (400, "InvalidParameter")
    assert "partition" in reply.error[2]


def test_expired_messages_are_reported() -> None:
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


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_through_kafka_is_got(oci_server: InProcessServer, api: Api, codec: str) -> None:
    stream, name = new_stream(api)
    now = int(datetime.now(UTC).timestamp() * 1000) - 5_000
    records = [(b"key-%d" % number, b"value-%d" % number * 20, now + number) for number in range(300)]
    produce(oci_server, name, records, codec, {"not": b"shown"})
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
    produce(oci_server, name, [(b"deleted", None, 5), (b"", b"", 5)])
    assert [(each["key"], each["value"]) for each in api.get(stream, api.cursor(stream)).json] == [
        ("ZGVsZXRlZA==", ""), ("", ""),
    ]  # fmt: skip


def test_with_log_append_time_both_listeners_return_the_servers_time(oci_server: InProcessServer, api: Api) -> None:
    with Wire(oci_server.kafka) as kafka:
        kafka.create("stamped", 1, message_timestamp_type="LogAppendTime")
    stream = api.done("GET", "/streams?compartmentId=x&name=stamped")[0]["id"]
    entry = api.put(stream, (None, b"mine"))["entries"][0]
    produce(oci_server, "stamped", [(None, b"theirs", 5)])
    told = [each["timestamp"] for each in api.get(stream, api.cursor(stream)).json]
    assert told[0] == entry["timestamp"]
    assert told[1] >= told[0]


def test_unreadable_records_are_skipped(oci_server: InProcessServer, api: Api) -> None:
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
