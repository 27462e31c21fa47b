"""The console's pages over HTTP: what they tell, to whom, and that nothing a stranger sent is more than text."""

import contextlib
import http.client
import json
import re
import socket
from base64 import b64encode
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urlencode

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from structlog.testing import capture_logs
from tests.harness.wire import Wire
from tests.oci.conftest import COMPARTMENT, Api

from headrace.access.needs import ANYBODY
from headrace.console import links, views
from headrace.console.registry import PAGES
from headrace.groups.subscriptions import assignment, partitions_of
from headrace.kafka.codec.messages import (
    AlterUserScramCredentialsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    OffsetCommitRequest,
)
from headrace.metrics import pipeline
from headrace.metrics.archive import KIND, ArchiveTold, Commit, State
from headrace.metrics.pipeline import FlowTold, PipelineTold
from headrace.testing import InProcessServer

EVIL = "<script>alert(1)</script>\"'&\x1b[31m\u202e"
"""HTML, an escape sequence, and a mark that turns text around."""
views.load()


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


def ask(server: InProcessServer, path: str, method: str = "GET", body: str = "", **headers: str) -> Answer:
    connection = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=30)
    connection.request(method, path, body or None, {name.replace("_", "-"): text for name, text in headers.items()})
    answer = connection.getresponse()
    found = Answer(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
    connection.close()
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with InProcessServer(oci_auth="off", console_write=True, group_initial_rebalance_delay_ms=0) as started:
        yield started


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
    producer = Producer({"bootstrap.servers": server.kafka, "message.max.bytes": 2_000_000, "linger.ms": 50})
    for key, value in records:
        producer.produce(topic, value, key, partition, headers=[(EVIL, EVIL.encode()), ("none", None)])
    assert producer.flush(30) == 0


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


def test_every_page_answers_and_is_ours_alone(server: InProcessServer) -> None:
    create(server, ("plain", 3))
    commit(server, "plain-readers", "plain", p0=0)
    for path in ("/", "/topics", "/topics/plain", "/topics/plain/records", "/groups", "/groups/plain-readers",
                 "/pipeline", "/brokers"):  # fmt: skip
        answer = ask(server, path)
        assert answer.status == 200, path
        safe(answer)
        assert ask(server, path, "HEAD").body == b""
    missing = ask(server, "/topics/nothing")
    assert missing.status == 404
    assert "There is no topic nothing." in missing.text
    assert ask(server, "/groups/nobody").status == 404
    assert ask(server, "/topics/plain/records?partition=9").status == 404
    assert ask(server, "/topics?cluster=nowhere").status == 404
    for wrong in ("page=0", "page=99999999999999999999", "page=-1", "sort=evil", "q=" + "x" * 5000, "%ff=%fe&a"):
        assert ask(server, f"/topics?{wrong}").status == 200, wrong


def test_everything_a_page_needs_is_small_and_from_here(server: InProcessServer) -> None:
    page = ask(server, "/")
    assets = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.html)
    modules = ["/static/live.js", "/static/chart.js", "/static/tabs.js", "/static/tail.js"]
    answers = [ask(server, path) for path in (*assets, *modules)]
    assert {each.status for each in answers} == {200}
    assert all("immutable" in each.headers["cache-control"] for each in answers[: len(assets)])
    assert sum(len(each.body) for each in (page, *answers)) < 100_000
    for path in ("/static/../pages.py", "/static/%2e%2e%2fpages.py", "/static/none.css", "/static/"):
        assert ask(server, path).status == 404


def test_hostile_names_keys_values_and_headers_are_text(server: InProcessServer) -> None:
    create(server, ("hostile", 1))
    commit(server, EVIL, "hostile", p0=0)
    big = b"[" * 1_000_000
    produce(
        server, "hostile", (EVIL.encode(), EVIL.encode()), (b"\xff\xfe", b"\x00\xff"), (None, None), (b"k", big),
        (b"", b'{"a": "\xe2\x80\xae", "b": [1]}'),
    )  # fmt: skip
    listed = safe(ask(server, "/topics/hostile/records?from=oldest"))
    assert "(1,000,000 bytes)" in unescape(listed)
    for offset in range(5):
        answer = ask(server, f"/topics/hostile/records?show={offset}")
        safe(answer)
        assert "\\x1b[31m\\u202e" in answer.text
    assert "1,000,000 bytes, the first 16 KiB are shown" in ask(server, "/topics/hostile/records?show=3").text
    assert "2 bytes, not UTF-8" in ask(server, "/topics/hostile/records?show=1").text
    laid_out = ask(server, "/topics/hostile/records?show=4").text
    assert '{ "a": "\\u202e", "b": [ 1 ] }' in laid_out
    assert len(ask(server, "/topics/hostile/records?show=3").body) < 200_000

    path = links.group(EVIL)
    assert "\\x1b[31m\\u202e" in ask(server, path).text
    for each in ("/", "/groups", path, path + "?to=time&at=" + quote(EVIL), "/topics?q=" + quote(EVIL),
                 "/topics/hostile/records?from=" + quote(EVIL) + "&key=" + quote(EVIL),
                 "/topics/" + quote(EVIL, safe=""), "/topics/hostile/records?at=" + quote(EVIL)):  # fmt: skip
        safe(ask(server, each))


def test_a_record_is_shown_as_kafka_oci_and_redis_have_it(server: InProcessServer) -> None:
    create(server, ("everywhere", 1))
    produce(server, "everywhere", *((b"key-%d" % n, b"value-%d" % n) for n in range(5)))
    page = unescape(ask(server, "/topics/everywhere/records?show=3").html)
    assert '"offset": 3' in page
    assert '"key": "key-3"' in page
    api = Api(server.http)
    stream = api.done("GET", f"/streams?compartmentId={COMPARTMENT}&name=everywhere")[0]["id"]
    message = api.get(stream, api.cursor(stream)).json[3]
    api.close()
    assert f'"key": "{message["key"]}"' in page
    assert f'"value": "{message["value"]}"' in page
    command = re.search(r"XRANGE (\S+) (\S+) (\S+)\n", page)
    assert command is not None
    import redis  # noqa: PLC0415

    with redis.Redis.from_url(server.storage) as storage:
        ((entry, fields),) = storage.xrange(command[1], command[2], command[3])
    assert entry.decode() == command[2]
    assert b"value-3" in fields[b"b"]
    assert "this is record 4 of 5 in it" in page


def test_records_are_found_by_offset_time_and_key(server: InProcessServer) -> None:
    create(server, ("found", 2))
    produce(server, "found", *((b"even" if n % 2 == 0 else b"odd", b"v%d" % n) for n in range(120)), partition=1)

    def offsets(query: str) -> list[int]:
        html = ask(server, f"/topics/found/records?partition=1&{query}").html
        return [int(text) for text in re.findall(r"show=(\d+)#record", html)]

    assert offsets("") == list(range(70, 120))
    assert offsets("from=oldest") == list(range(50))
    assert offsets("from=100") == list(range(100, 120))
    assert offsets("from=oldest&key=odd") == list(range(1, 101, 2))
    assert offsets("at=1h") == list(range(50))
    assert offsets("at=@" + "9" * 14) == []
    # Without a partition it is the first that has records.
    assert "Partition 1: offsets 0 to 120" in ask(server, "/topics/found/records").text


def test_many_partitions_are_shown_a_page_at_a_time(server: InProcessServer) -> None:
    create(server, ("many", 520))
    first, last = ask(server, "/topics/many"), ask(server, "/topics/many?page=11")
    assert "520 partitions" in first.text
    assert "Page 1 of 11" in first.text
    shown = [re.findall(r"records\?partition=(\d+)", answer.html) for answer in (first, last)]
    assert [list(map(int, indexes)) for indexes in shown] == [list(range(50)), list(range(500, 520))]


def test_all_partitions_of_a_group_and_of_its_reset_are_a_link_away(server: InProcessServer) -> None:
    create(server, ("wide", 420))
    commit(server, "wide-readers", "wide", p419=0)
    seen: list[str] = []
    href = "/groups/wide-readers?to=latest&topic=wide"
    while href:
        answer = ask(server, href)
        assert len(answer.body) < 200_000
        assert "Move 420 positions" in answer.text
        reset = safe(answer).partition('id="reset"')
        seen += re.findall(r'<th scope="row"><bdi>wide</bdi> (\d+)</th>', reset[0])
        moved = re.findall(r'<bdi>wide</bdi></th><td class="n">(\d+)<', reset[2])
        assert moved == seen[-len(moved) :]
        following = re.search(r'rel="next" href="([^"#]*)#reset"', reset[2])
        href = unescape(following[1]) if following else ""
    assert seen == [str(number) for number in range(420)]


def test_a_group_shows_who_has_what_and_how_far_it_is(server: InProcessServer) -> None:
    create(server, ("shared", 2))
    produce(server, "shared", *((None, b"v") for _ in range(10)))
    commit(server, "sharers", "shared", p0=4)
    nobody = ask(server, "/groups/sharers").text
    assert "Nobody is in this group just now." in nobody
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "sharers", "client.id": "<i>one"})
    consumer.subscribe(["shared"])
    while len(consumer.assignment()) < 2:
        consumer.poll(0.1)
    answer = ask(server, "/groups/sharers")
    consumer.close()
    html = safe(answer)
    assert "<i>one 127.0.0.1, 2 partitions" in answer.text
    assert len(re.findall(r'class="tile m0', html)) == 2
    assert re.search(r'data-k="0.lag">6<', html)
    assert re.search(r'data-k="0.position">4<', html)
    assert re.search(r'data-k="1.position">-<', html)


def test_a_reset_is_shown_first_and_done_only_by_the_pages_own_form(server: InProcessServer) -> None:
    create(server, ("reset", 2))
    produce(server, "reset", *((None, b"v") for _ in range(10)))
    commit(server, "resetters", "reset", p0=7, p1=0)
    assert "expected a whole number, found 'x'" in ask(server, "/groups/resetters?to=offset&at=x").text
    shown = ask(server, "/groups/resetters?to=offset&at=3&topic=reset")
    assert "reset 0 7 3 7" in shown.text
    token = re.search(r'name="token" value="(\w+)"', shown.html)
    assert token is not None
    cookie = shown.headers["set-cookie"]
    assert "SameSite=strict" in cookie
    assert "HttpOnly" in cookie
    form = {"to": "offset", "at": "3", "topic": "reset", "token": token[1]}
    kept = {"cookie": cookie.split(";")[0], "content_type": "application/x-www-form-urlencoded"}

    def post(fields: dict[str, str], **headers: str) -> Answer:
        return ask(server, "/groups/resetters", "POST", urlencode(fields), **headers)

    refused = [
        post(form, content_type="application/x-www-form-urlencoded"),
        post(form | {"token": "0" * 64}, **kept),
        post(form, **kept, sec_fetch_site="cross-site"),
        post(form, **kept, origin="http://evil.example"),
        post(form | {"at": "x" * 70_000}, **kept),
    ]
    assert [each.status for each in refused] == [403] * 5
    assert "reset 0 7 3 7" in ask(server, "/groups/resetters?to=offset&at=3&topic=reset").text
    with capture_logs() as logged:
        done = post(form, **kept, origin=server.http)
    (line,) = (each for each in logged if each["event"] == "changed")
    assert (line["operation"], line["client"]) == ("ResetGroup", "127.0.0.1")
    assert (line["principal"], line["reason"]) == ("User:ANONYMOUS", "positions of group resetters moved: 2 partitions")
    assert (done.status, done.headers["location"]) == (303, "/groups/resetters?done=2")
    assert "2 positions moved." in ask(server, done.headers["location"]).text
    assert re.search(r'data-k="0.position">3<', ask(server, "/groups/resetters").html)


def test_a_group_with_members_is_not_moved(server: InProcessServer) -> None:
    create(server, ("busy", 1))
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "busy", "enable.auto.commit": False})
    consumer.subscribe(["busy"])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.commit(offsets=[TopicPartition("busy", 0, 0)], asynchronous=False)
    shown = ask(server, "/groups/busy?to=latest")
    consumer.close()
    assert "The group has 1 member, to be stopped before." in shown.text
    assert 'name="token"' not in shown.html


def test_the_console_only_looks_unless_it_is_asked_to_write() -> None:
    with InProcessServer() as server:
        create(server, ("t", 1))
        commit(server, "g", "t", p0=0)
        commit(server, "g; reboot", "t", p0=0)
        shown = ask(server, "/groups/g?to=latest")
        assert "headrace groups reset g --to-latest --execute" in shown.text
        assert (
            "headrace groups reset 'g; reboot' --to-latest --execute"
            in ask(server, links.group("g; reboot", to="latest")).text
        )
        assert 'method="post"' not in shown.html
        assert ask(server, "/groups/g", "POST", "to=latest").status == 403


def test_many_topics_and_groups_come_a_page_at_a_time() -> None:
    with InProcessServer() as server:
        for start in range(0, 1000, 100):
            create(server, *((f"topic-{n:04}", 10) for n in range(start, start + 100)))
        for n in range(500):
            commit(server, f"group-{n:03}", "topic-0000", p0=0)
        first = ask(server, "/topics")
        assert "1,000 in all" in first.text
        assert "Page 1 of 20" in first.text
        assert first.html.count("<tr>") == 51
        assert "topic-0999" in ask(server, "/topics?page=20").text
        assert "10 found" in ask(server, "/topics?q=topic-099&sort=records").text
        assert "Page 1 of 10" in ask(server, "/groups").text
        assert "10,000 partitions" in ask(server, "/").text
        for path in ("/", "/topics", "/groups", "/topics/topic-0500", "/brokers"):
            assert len(ask(server, path).body) < 100_000, path


def test_an_archive_that_tells_of_itself_is_in_the_pipeline(server: InProcessServer) -> None:
    import redis  # noqa: PLC0415

    told = ArchiveTold(
        topic="plain", table=EVIL, group="archiver", host="here", started_ms=1, told_ms=server.clock.now_ms(),
        rows=1234, files=7, bytes=2_000_000, version=5, lag=66, fresh_ms=server.clock.now_ms() - 90_000,
        group_failures=2, commits=(Commit(1_700_000_000_000, 1234, 2.5, 5),), problem=EVIL,
    )  # fmt: skip
    with redis.Redis.from_url(server.storage) as storage:
        key = f"headrace:{{meta}}:documents:{KIND}"
        storage.hset(key, "a", msgspec.json.encode(told))
        storage.hset(key, "b", b"\xff{")
    answer = ask(server, "/pipeline")
    safe(answer)
    for text in ("running", "1 min 30 s ago", "66", "1,234", "2.0 MB", "archiver"):
        assert text in answer.text
    assert re.search(r'data-k="0.failures">2<', answer.html)


def test_a_declared_pipeline_that_tells_of_itself_is_in_the_pipeline(server: InProcessServer) -> None:
    import redis  # noqa: PLC0415

    flows = (
        FlowTold(name="bronze", state="completed", read=1234, written=1200, batches=1, seconds=4.2, behind=34),
        FlowTold(name=EVIL, state=EVIL),
    )
    now_ms = server.clock.now_ms()
    told = PipelineTold(
        name=EVIL, folder="/home/me/shop", host="here", state=State.FAILED, problem="no such topic",
        started_ms=now_ms - 42_000, told_ms=now_ms, flows=flows,
    )  # fmt: skip
    with redis.Redis.from_url(server.storage) as storage:
        key = f"headrace:{{meta}}:documents:{pipeline.KIND}"
        storage.hset(key, "a", msgspec.json.encode(told))
        storage.hset(key, "b", b"{}")
    answer = ask(server, "/pipeline")
    safe(answer)
    for text in ("failed", "no such topic", "bronze completed 1,234 1,200 4 s 34", "/home/me/shop", "after 42 s"):
        assert text in answer.text


# Live


class Stream:
    """Server-sent events as they come."""

    def __init__(self, server: InProcessServer, path: str, head: str = "") -> None:
        host, port = server.http.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)), 30)
        asked = f"GET /events?of={quote(path, safe='')} HTTP/1.1\r\nhost: {host}:{port}\r\n{head}\r\n"
        self._socket.sendall(asked.encode())
        self._file = self._socket.makefile("rb")
        self.head = b"".join(iter(self._file.readline, b"\r\n"))

    def event(self) -> tuple[str, object]:
        """The next one; raises EOFError when there is none any more."""
        name = ""
        for line in self._file:
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                return name, json.loads(line[6:])
            elif line == b"0\r\n":  # the last chunk
                break
        raise EOFError

    def rest(self) -> list[str]:
        """The names of all events until the stream ends."""
        names = []
        with contextlib.suppress(EOFError):
            while True:
                names.append(self.event()[0])
        return names

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def test_a_page_is_told_what_changed_and_nothing_else(server: InProcessServer) -> None:
    create(server, ("living", 1))
    stream = Stream(server, "/topics/living")
    assert b"text/event-stream" in stream.head
    name, cells = stream.event()
    assert name == "cells"
    assert isinstance(cells, dict)
    assert cells["records"] == "0"
    produce(server, "living", (b"k", b"v"))
    server.clock.advance(seconds=2)
    while True:
        name, cells = stream.event()
        assert name == "cells"
        assert isinstance(cells, dict)
        assert "0.epoch" not in cells
        if "records" in cells:
            break
        server.clock.advance(seconds=2)
    assert (cells["records"], cells["0.end"]) == ("1", "1")
    # Another partition makes it another page.
    with Wire(server.kafka) as wire:
        from headrace.kafka.codec.messages import CreatePartitionsRequest  # noqa: PLC0415

        grow = CreatePartitionsRequest.CreatePartitionsTopic(name="living", count=2, assignments=None)
        wire.ask(CreatePartitionsRequest(topics=[grow], timeout_ms=10_000, validate_only=False), 2)
    server.clock.advance(seconds=2)
    while stream.event()[0] != "shape":
        server.clock.advance(seconds=2)
    stream.close()


def test_records_are_told_as_they_come(server: InProcessServer) -> None:
    create(server, ("tailed", 1))
    stream = Stream(server, "/topics/tailed/records?partition=0&tail=0")
    assert stream.event()[0] == "cells"
    produce(server, "tailed", (EVIL.encode(), b"<b>new</b>"))
    server.clock.advance(seconds=2)
    while True:
        name, told = stream.event()
        if name == "rows":
            break
        server.clock.advance(seconds=2)
    stream.close()
    assert isinstance(told, dict)
    assert "&lt;b&gt;new&lt;/b&gt;" in told["html"]
    Safe().feed(told["html"])


def test_streams_end_with_their_topic_their_login_and_the_server(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text("jane:secret")
    login = f"authorization: Basic {b64encode(b'jane:secret').decode()}\r\n"
    with InProcessServer(oci_auth="off", bootstrap_user=first) as server:
        assert ask(server, "/events?of=/nowhere").status == 404
        create(server, ("short", 1))
        gone, staying, removed = Stream(server, "/topics/short"), Stream(server, "/"), Stream(server, "/", login)
        assert gone.event()[0] == staying.event()[0] == removed.event()[0] == "cells"
        with Wire(server.kafka) as wire:
            wire.ask(DeleteTopicsRequest(topic_names=["short"], timeout_ms=10_000), 3)
            jane = [AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="jane", mechanism=n) for n in (1, 2)]
            wire.ask(AlterUserScramCredentialsRequest(deletions=jane, upsertions=[]), 0)
        server.clock.advance(seconds=2)
        assert gone.rest()[-1] == removed.rest()[-1] == "gone"
        server.stop()
        assert set(staying.rest()) <= {"cells", "shape"}
        for stream in (gone, staying, removed):
            stream.close()


# Who may


def test_others_than_this_machine_are_refused(server: InProcessServer) -> None:
    answer = ask(server, "/", host="evil.example")
    assert answer.status == 403
    assert ask(server, "/events?of=/", origin="http://evil.example").status == 403


def test_every_page_says_what_it_needs() -> None:
    assert {page.name for page in PAGES.values() if page.needs == ANYBODY} == set()
    assert {page.method for page in PAGES.values()} == {"GET", "POST"}
    assert [page.name for page in PAGES.values() if page.method == "POST"] == ["ResetGroup"]


def test_assignments_are_read_as_they_are_written() -> None:
    shares = {"a": [0, 2], "b": []}
    assert partitions_of(assignment(shares)) == shares
    for wrong in (b"", b"\x00", b"\x00\x00\xff\xff\xff\xff", assignment(shares)[:-8], b"\x00\x00\x00\x00\x00\x01\x7f"):
        assert partitions_of(wrong) is None
