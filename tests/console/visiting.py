"""A visitor of the console: asks for pages, reads them, and makes what they show."""

import base64
import contextlib
import http.client
import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from urllib.parse import urlencode

import msgspec
from confluent_kafka import KafkaException, Producer
from tests.harness.wire import Wire

from headrace.protocol.messages import (
    CreateTopicsRequest,
    OffsetCommitRequest,
)
from headrace.testing import InProcessServer, Server

EVIL = "<script>alert(1)</script>\"'&\x1b[31m\u202e"
"""HTML, an escape sequence, and a mark that turns text around."""


class Answer(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def html(self) -> str:
        assert self.headers["content-type"] == "text/html; charset=utf-8"
        return self.body.decode()

    @property
    def text(self) -> str:
        """What a reader sees, without tags."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.html)).split())


def ask(server: InProcessServer | Server, path: str, method: str = "GET", body: str = "", **headers: str) -> Answer:
    connection = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=60)
    connection.request(method, path, body or None, {name.replace("_", "-"): text for name, text in headers.items()})
    answer = connection.getresponse()
    found = Answer(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
    connection.close()
    return found


def create(server: InProcessServer, *topics: tuple[str, int]) -> None:
    asked = [
        CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[]
        )
        for name, count in topics
    ]
    with Wire(server.kafka) as wire:
        answer = wire.ask(CreateTopicsRequest(topics=asked, timeout_ms=10_000), 4)
    assert [each.error_code for each in answer.topics] == [0] * len(topics)


def commit(server: InProcessServer, group: str, topic: str, **positions: int) -> None:
    told = [
        OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=int(name[1:]), committed_offset=offset)
        for name, offset in positions.items()
    ]
    topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=told)]
    with Wire(server.kafka) as wire:
        answer = wire.ask(OffsetCommitRequest(group_id=group, topics=topics), 8)
    assert {each.error_code for each in answer.topics[0].partitions} == {0}


def produce(
    server: InProcessServer, topic: str, *records: tuple[bytes | None, bytes | None], partition: int = 0
) -> None:
    producer = Producer({"bootstrap.servers": server.kafka, "message.max.bytes": 2_000_000, "linger.ms": 60_000})
    for key, value in records:
        producer.produce(topic, value, key, partition, headers=[(EVIL, EVIL.encode()), ("none", None)])
    assert producer.flush(60) == 0


class Safe(HTMLParser):
    """Fails on anything that a browser would run or fetch from elsewhere."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"iframe", "object", "embed", "base", "img", "style", "b", "i"}, tag
        for name, text in attrs:
            assert not name.startswith("on"), (tag, attrs)
            assert name != "style", (tag, attrs)
            if name in {"href", "src", "action"}:
                assert text is not None
                assert text.startswith(("/", "#")) or text == "", (tag, attrs)
        if tag == "script":
            assert dict(attrs).get("src", "")


def safe(answer: Answer) -> str:
    """The page, which has nothing in it that anybody but us could have written as more than text."""
    html = answer.html
    Safe().feed(html)
    assert html.count("<script") == 2
    assert not set(html) & {"\x1b", "\u202e", "\x00"}
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    return html


class Visit:
    """A browser that submits the forms of one server, with a login if one is given."""

    def __init__(self, server: InProcessServer, authorization: str = "") -> None:
        self.server = server
        self.token = ""
        self._headers = {"authorization": authorization} if authorization else {}

    @classmethod
    def of(cls, server: InProcessServer, name: str, password: str) -> "Visit":
        return cls(server, "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode())

    def ask(self, path: str) -> Answer:
        answer = ask(self.server, path, **self._headers)
        token = re.search(rb'name="token" value="(\w+)"', answer.body)
        if token is not None:
            self.token = token[1].decode()
            self._headers["cookie"] = answer.headers["set-cookie"].split(";")[0]
        return answer

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Answer:
        sent = {"content_type": "application/x-www-form-urlencoded"} | self._headers | headers
        return ask(self.server, path, "POST", urlencode({"token": self.token} | fields), **sent)

    def done(self, path: str, fields: dict[str, str]) -> Answer:
        """The page after a change."""
        answer = self.post(path, fields)
        assert answer.status == 303, answer.body
        return self.ask(answer.headers["location"])

    def wrong(self, path: str, fields: dict[str, str]) -> str:
        """Why the server rejected a form, as the page says it; the page has nothing in it but text."""
        answer = self.post(path, fields)
        assert answer.status == 400, (answer.status, answer.body)
        found = re.findall(r'role="alert"><bdi>(.*?)</bdi>', safe(answer))
        assert len(found) == 1, found
        return unescape(found[0])


@contextlib.contextmanager
def with_an_open_transaction(server: InProcessServer, topic: str) -> Iterator[Producer]:
    """Records in partition 0: plain 0, committed 1 and its marker, aborted 3 and 4 and a marker, open 6, plain 7."""
    produce(server, topic, (b"plain", b"0"))
    producer = Producer({"bootstrap.servers": server.kafka, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions(20)
    for value, count in ((b"committed", 1), (b"aborted", 2), (b"open", 1)):
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(topic, value, b"key", 0)
        producer.flush(20)
        if value == b"committed":
            producer.commit_transaction(20)
        if value == b"aborted":
            producer.abort_transaction(20)
    produce(server, topic, (b"plain", b"7"))
    yield producer
    with contextlib.suppress(KafkaException):
        producer.abort_transaction(20)
