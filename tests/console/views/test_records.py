"""The console's records pages over HTTP, with hostile input shown as text."""

import re
from html import unescape

import redis
from tests.console.visiting import ask, create, produce
from tests.harness.waiting import wait_for
from tests.oci.conftest import COMPARTMENT, Api

from headrace.console import views
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
