"""The console's records pages over HTTP, with hostile input shown as text."""

import csv
import io
import json
import re
from base64 import b64decode
from html import unescape

import redis
from tests.console.visiting import EVIL, ask, create, produce, with_an_open_transaction
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire
from tests.oci.conftest import COMPARTMENT, Api

from headrace.console import views
from headrace.protocol.messages import CreateTopicsRequest
from headrace.testing import InProcessServer

views.load()


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
    with redis.Redis.from_url(server.storage) as storage:
        # It may have been acknowledged from the journal a moment ago.
        wait_for(lambda: bool(storage.xlen(command[1])), "the batch to be in Redis")
        ((entry, fields),) = storage.xrange(command[1], command[2], command[3])
    assert entry.decode() == command[2]
    assert b"value-3" in fields[b"b"]
    assert "this is record 4 of 5 in it" in page


def test_a_record_in_a_cleaned_segment_is_shown_where_redis_has_it() -> None:
    compact = CreateTopicsRequest.CreatableTopicConfig(name="cleanup.policy", value="compact")
    topic = CreateTopicsRequest.CreatableTopic(
        name="states", num_partitions=1, replication_factor=1, assignments=[], configs=[compact]
    )
    with InProcessServer(oci_auth="off") as server, redis.Redis.from_url(server.storage) as storage:
        with Wire(server.kafka) as wire:
            wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 4)
        for number in range(3):
            produce(server, "states", *((b"key-%d" % n, b"value-%d-%d" % (n, number)) for n in range(number, 5)))

        def cleaned() -> bool:
            server.clock.advance(seconds=16)
            return any(b":clean:" in key for key in storage.scan_iter("*states*"))

        wait_for(cleaned, "the cleaner to write a segment")
        # The other keys of the first batch have newer records.
        page = unescape(ask(server, "/topics/states/records?show=0").html)
        command = re.search(r"XRANGE (\S+) (\S+) (\S+)\n", page)
        assert command is not None
        ((entry, fields),) = storage.xrange(json.loads(command[1]), command[2], command[3])
        assert entry.decode() == command[2] == "0-5"
        assert b"value-0-0" in fields[b"b"]
        assert "this is one of the records that the cleaner kept in it" in page
        # The last batch is in the stream.
        page = unescape(ask(server, "/topics/states/records?show=9").html)
        assert "this is record 1 of 3 in it" in page


def offsets_of(server: InProcessServer, path: str) -> list[tuple[int, int]]:
    """Return partition and offset of the records on a page, in order."""
    found = re.findall(r'href="[^"]*partition=(\d+)&amp;from=\d+&amp;show=(\d+)#record', ask(server, path).html)
    return [(int(partition), int(offset)) for partition, offset in found]


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
    # Without a partition, the page shows the newest records of all.
    assert offsets_of(server, "/topics/found/records") == [(1, offset) for offset in range(95, 120)]
    assert "All 2 partitions" in ask(server, "/topics/found/records").text


def test_records_of_transactions_are_shown_once_they_are_committed(server: InProcessServer) -> None:
    create(server, ("transactional", 2))
    path = "/topics/transactional/records"
    with with_an_open_transaction(server, "transactional") as producer:
        for query in ("", "partition=0&from=oldest", "partition=0&from=0", "q=&key=&from=oldest"):
            assert offsets_of(server, f"{path}?{query}") == [(0, 0), (0, 1)], query
        page = ask(server, f"{path}?partition=0&from=oldest").text
        assert "offsets 0 to 6 ; an open transaction hides 2 offsets from 6 on" in page
        assert "4 offsets of aborted transactions and markers not shown." in page
        page = ask(server, f"{path}?from=oldest").text
        assert "Open transactions hide the last records of 1 partition: 0." in page
        assert "4 offsets of aborted transactions and markers not shown." in page
        assert offsets_of(server, f"{path}?q=aborted") == offsets_of(server, f"{path}?q=open") == []
        assert "4 offsets of aborted" in ask(server, f"{path}?q=aborted").text
        assert offsets_of(server, f"{path}?q=committed") == [(0, 1)]
        lines = ask(server, f"{path}?from=oldest&download=jsonl").body.decode().splitlines()
        assert [json.loads(line)["value"] for line in lines] == ["0", "committed"]
        assert "aborted" not in ask(server, f"{path}?partition=0&show=3").text.replace("aborted transactions", "")
        producer.commit_transaction(20)
    assert offsets_of(server, f"{path}?partition=0&from=oldest") == [(0, 0), (0, 1), (0, 6), (0, 7)]
    page = ask(server, f"{path}?partition=0&from=oldest").text
    assert "offsets 0 to 9" in page
    assert "open transaction" not in page
    assert "5 offsets of aborted transactions and markers not shown." in page
    assert "not shown" not in ask(server, f"{path}?partition=1&from=oldest").text


def test_a_record_that_is_not_shown_has_no_page_of_its_own(server: InProcessServer) -> None:
    create(server, ("hidden", 1))
    path = "/topics/hidden/records?partition=0&from=oldest"
    with with_an_open_transaction(server, "hidden") as producer:
        producer.commit_transaction(20)
    for offset in (2, 3, 4, 5, 8):
        assert 'id="record"' not in ask(server, f"{path}&show={offset}").html, offset
    for offset in (1, 6, 7):
        assert f"Record {offset}" in ask(server, f"{path}&show={offset}").text


def test_what_is_shown_can_be_downloaded_without_loss(server: InProcessServer) -> None:
    create(server, ("saved", 2))
    sent = [(b"=1+1", b'caf\xc3\xa9, "quoted"\nline'), (b"\xff\x00", b""), (None, None), (b"'a", b"@x\x00")]
    produce(server, "saved", *sent)
    answer = ask(server, "/topics/saved/records?download=jsonl")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["content-disposition"] == 'attachment; filename="saved-records.jsonl"'
    lines = [json.loads(line) for line in answer.body.decode().splitlines()]
    assert [line["offset"] for line in lines] == [0, 1, 2, 3]

    def data(line: dict[str, str | None], name: str) -> bytes | None:
        if f"{name}_base64" in line:
            return b64decode(line[f"{name}_base64"] or "")
        found = line[name]
        return None if found is None else found.encode()

    assert [(data(line, "key"), data(line, "value")) for line in lines] == sent
    assert lines[0]["headers"] == [{"name": EVIL, "value": EVIL}, {"name": "none", "value": None}]
    answer = ask(server, "/topics/saved/records?download=csv")
    rows = list(csv.DictReader(io.StringIO(answer.body.decode(), newline="")))

    def cell(row: dict[str, str], name: str) -> bytes | None:
        assert not row[name].startswith(("=", "+", "-", "@")), "a spreadsheet would evaluate it"
        match row[f"{name}_encoding"]:
            case "null":
                return None
            case "base64":
                return b64decode(row[name].removeprefix("'"))
        return row[name].removeprefix("'").encode()

    assert [(cell(row, "key"), cell(row, "value")) for row in rows] == sent
    only = ask(server, "/topics/saved/records?q=caf&download=csv").body.decode()
    assert len(list(csv.reader(io.StringIO(only, newline="")))) == 2
    assert ask(server, "/topics/saved/records?download=exe").headers["content-type"].startswith("text/html")
