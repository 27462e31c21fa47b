"""The form that produces a record: Kafka clients read what it wrote."""

import re

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.console.visiting import EVIL, Visit, ask, create, safe

from headrace.testing import InProcessServer


@pytest.fixture(scope="module")
def wrong(server: InProcessServer) -> InProcessServer:
    create(server, ("wrong", 1))
    return server


def consumed(server: InProcessServer, topic: str, partition: int, offset: int) -> Message:
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, offset)])
    message = consumer.poll(60)
    consumer.close()
    assert message is not None
    assert message.error() is None
    return message


def test_a_record_has_what_was_typed(server: InProcessServer) -> None:
    create(server, ("typed", 3))
    visit = Visit(server)
    assert 'href="/topics/typed/produce"' in ask(server, "/topics/typed").html
    visit.ask("/topics/typed/produce")
    done = visit.done(
        "/topics/typed/produce",
        {"key": "k", "value": "{\r\n 1}", "headers": "source: console\r\n\r\nempty:", "partition": ""},
    )
    assert "Stored at offset 0 of partition 2 ." in done.text  # Java's partition of this key
    message = consumed(server, "typed", 2, 0)
    assert (message.key(), message.value()) == (b"k", b"{\n 1}")
    assert message.headers() == [("source", b"console"), ("empty", b"")]
    found = re.search(r'href="(/topics/typed/records[^"]*)#record"', done.html)
    assert found is not None
    assert "Record 0" in ask(server, found[1].replace("&amp;", "&")).text


def test_null_and_bytes_can_be_produced(server: InProcessServer) -> None:
    create(server, ("nulls", 2))
    visit = Visit(server)
    visit.ask("/topics/nulls/produce")
    visit.done("/topics/nulls/produce", {"key": "k", "value": "", "tombstone": "1", "partition": "1"})
    visit.done("/topics/nulls/produce", {"value": "AP8=", "encoding": "base64", "partition": "1"})
    visit.done("/topics/nulls/produce", {"partition": "1"})
    found = [consumed(server, "nulls", 1, offset) for offset in range(3)]
    assert [(each.key(), each.value()) for each in found] == [(b"k", None), (None, b"\x00\xff"), (None, b"")]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"partition": "7"}, "topic 'wrong' has 1 partitions, no partition 7"),
        ({"partition": "-1"}, "Partition: expected a whole number, found '-1'."),
        ({"partition": EVIL}, "Partition: expected a whole number, found "),
        ({"partition": "9" * 30}, "Partition: expected a whole number, found "),
        ({"value": "x!", "encoding": "base64"}, "Value: expected base64, found 'x!'."),
        ({"value": "é", "encoding": "base64"}, "Value: expected base64, found 'é'."),
        ({"key": "x!", "encoding": "base64"}, "Key: expected base64, found 'x!'."),
        ({"tombstone": "1"}, "A tombstone has no value. Clear the value, or do not select the tombstone."),
        ({"headers": EVIL}, "Headers: expected lines such as source: console, found "),
        ({"headers": "a:b\n" * 101}, "Headers: expected at most 100, found 101."),
    ],
)
def test_a_rejected_record_stays_in_the_form(wrong: InProcessServer, given: dict[str, str], reason: str) -> None:
    visit = Visit(wrong)
    visit.ask("/topics/wrong/produce")
    fields = {"key": "the key", "value": "the value", "headers": "the: header"} | given
    assert visit.wrong("/topics/wrong/produce", fields).startswith(reason)
    page = safe(visit.post("/topics/wrong/produce", fields))
    for name in {"key", "value", "headers"} - set(given):
        assert fields[name] in page


def test_the_broker_rejects_what_it_rejects_from_clients(server: InProcessServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.kafka})
    topic = NewTopic("limited", 1, config={"max.message.bytes": "100"})
    admin.create_topics([topic])["limited"].result(60)
    visit = Visit(server)
    visit.ask("/topics/limited/produce")
    reason = visit.wrong("/topics/limited/produce", {"value": "x" * 100, "partition": "0"})
    assert re.fullmatch(r"a record batch of \d+ bytes is over max\.message\.bytes=100", reason)
    assert ask(server, "/topics/none/produce").status == 404
    assert visit.post("/topics/none/produce", {"value": "x"}).status == 404
    assert visit.post("/topics/__consumer_offsets/produce", {"value": "x", "partition": "0"}).status == 400


def test_a_native_topic_takes_a_record_that_redis_clients_read(server: InProcessServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.kafka})
    topic = NewTopic("native", 1, config={"headrace.storage": "native"})
    admin.create_topics([topic])["native"].result(60)
    visit = Visit(server)
    visit.ask("/topics/native/produce")
    visit.done("/topics/native/produce", {"key": "k", "value": "v", "partition": "0"})
    assert consumed(server, "native", 0, 0).value() == b"v"


def test_only_the_pages_own_form_produces(server: InProcessServer) -> None:
    create(server, ("guarded", 1))
    visit = Visit(server)
    visit.ask("/topics/guarded/produce")
    fields = {"value": "v", "partition": "0"}
    refused = [
        visit.post("/topics/guarded/produce", fields | {"token": "0" * 64}),
        visit.post("/topics/guarded/produce", fields, sec_fetch_site="cross-site"),
        visit.post("/topics/guarded/produce", fields, origin="http://evil.example"),
        visit.post("/topics/guarded/produce", fields, cookie=""),
        visit.post("/topics/guarded/produce", fields | {"value": "x" * (1 << 20)}),
        visit.post("/topics/guarded/produce", fields | {str(number): "" for number in range(60)}),
    ]
    assert [each.status for each in refused] == [403] * 6
    assert "offsets 0 to 0" in ask(server, "/topics/guarded/records").text
