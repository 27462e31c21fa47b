"""The console's pages over HTTP: what they tell, to whom, and that nothing a stranger sent is more than text."""

import re
import subprocess
import sys
from html import unescape
from urllib.parse import quote

import msgspec
import redis
from tests.console.visiting import EVIL, ask, commit, create, produce, safe
from tests.harness.waiting import wait_for
from tests.oci.conftest import COMPARTMENT, Api

from headrace.console import views
from headrace.console.registry import PAGES
from headrace.console.text import group
from headrace.lakehouse.status.counters import Figures, Progress, TopicProgress
from headrace.lakehouse.status.document import Teller, Told
from headrace.metrics.runs import ARCHIVE_RUNS, PIPELINE_RUNS, ArchiveReport, Commit, FlowReport, PipelineReport, State
from headrace.security.access.required_acls import ANYBODY
from headrace.testing import InProcessServer

views.load()


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


def test_an_internal_topic_is_not_offered_and_shows_no_streams(server: InProcessServer) -> None:
    assert "__consumer_offsets" not in ask(server, "/topics").text
    answer = ask(server, "/topics/__consumer_offsets")
    assert answer.status == 200, "groups that have positions in it link to it"
    assert "default/__consumer_offsets" not in answer.text


FIRST_VISITORS = """
import sys, threading
from tests.console.visiting import ask
from headrace.testing import InProcessServer

with InProcessServer(oci_auth="off") as server:
    assert ask(server, "/readyz").status == 200
    assert "jinja2" not in sys.modules
    found = []
    paths = ["/", "/topics", "/groups", "/login", "/nowhere"]
    visitors = [threading.Thread(target=lambda path=path: found.append(ask(server, path).status)) for path in paths]
    for each in visitors:
        each.start()
    for each in visitors:
        each.join()
    assert sorted(found) == [200, 200, 200, 200, 404], found
"""


def test_pages_are_made_ready_for_the_first_visitors() -> None:
    """All at once, in a process where nobody was before."""
    done = subprocess.run([sys.executable, "-c", FIRST_VISITORS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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

    path = group(EVIL)
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


def test_many_partitions_are_shown_a_page_at_a_time(server: InProcessServer) -> None:
    create(server, ("many", 520))
    first, last = ask(server, "/topics/many"), ask(server, "/topics/many?page=11")
    assert "520 partitions" in first.text
    assert "Page 1 of 11" in first.text
    shown = [re.findall(r"records\?partition=(\d+)", answer.html) for answer in (first, last)]
    assert [list(map(int, indexes)) for indexes in shown] == [list(range(50)), list(range(500, 520))]


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
    told = ArchiveReport(
        topic="plain", table=EVIL, group="archiver", host="here", started_ms=1, told_ms=server.clock.now_ms(),
        rows=1234, files=7, bytes=2_000_000, version=5, lag=66, fresh_ms=server.clock.now_ms() - 90_000,
        group_failures=2, commits=(Commit(1_700_000_000_000, 1234, 2.5, 5),), problem=EVIL,
    )  # fmt: skip
    with redis.Redis.from_url(server.storage) as storage:
        key = f"headrace:{{meta}}:documents:{ARCHIVE_RUNS}"
        storage.hset(key, "a", msgspec.json.encode(told))
        storage.hset(key, "b", b"\xff{")
    answer = ask(server, "/pipeline")
    safe(answer)
    for text in ("running", "1 min 30 s ago", "66", "1,234", "2.0 MB", "archiver"):
        assert text in answer.text
    assert re.search(r'data-k="0.failures">2<', answer.html)


def test_runs_of_one_archive_are_counted_together_until_its_table_is_made_anew(server: InProcessServer) -> None:
    def run(rows: int, version: int) -> str:
        figures = Figures()
        told = TopicProgress(lag=0, version=version, batch_rows=rows, batch_bytes=1000 * rows, batch_files=1)
        figures.took(Progress(topics={"run-often": told}))
        teller = Teller(Told(server.storage, "./lake/{topic}", None, 10.0), figures)
        teller.end(State.DONE)
        return ask(server, "/pipeline?q=run-often").text

    assert " Records 5 Files 1 " in run(5, 1)
    assert " Records 12 Files 2 " in run(7, 2)
    assert " Records 12 Files " in run(0, 2), "a run that finds nothing new"
    assert " Records 3 Files 1 " in run(3, 1), "the table was deleted before it"


def test_a_declared_pipeline_that_tells_of_itself_is_in_the_pipeline(server: InProcessServer) -> None:
    flows = (
        FlowReport(name="bronze", state="completed", read=1234, written=1200, batches=1, seconds=4.2, behind=34),
        FlowReport(name=EVIL, state=EVIL),
    )
    now_ms = server.clock.now_ms()
    told = PipelineReport(
        name=EVIL, folder="/home/me/shop", host="here", state=State.FAILED, problem="no such topic",
        started_ms=now_ms - 42_000, told_ms=now_ms, flows=flows,
    )  # fmt: skip
    with redis.Redis.from_url(server.storage) as storage:
        key = f"headrace:{{meta}}:documents:{PIPELINE_RUNS}"
        storage.hset(key, "a", msgspec.json.encode(told))
        storage.hset(key, "b", b"{}")
    answer = ask(server, "/pipeline")
    safe(answer)
    for text in ("failed", "no such topic", "bronze completed 1,234 1,200 4 s 34", "/home/me/shop", "after 42 s"):
        assert text in answer.text


def test_a_path_that_is_nobodys_is_a_page_for_people_and_json_for_programs(server: InProcessServer) -> None:
    browser = "text/html,application/xhtml+xml,*/*;q=0.8"
    page = ask(server, "/nonsense/%3Cb%3E?cluster=nowhere", accept=browser)
    assert page.status == 404
    assert "There is no such page. To the overview" in page.text
    safe(page)
    assert ask(server, "/nonsense", "HEAD", accept=browser).body == b""
    for path, accept in (("/nonsense", "*/*"), ("/nonsense", "application/json"), ("/20180418/nonsense", browser)):
        answer = ask(server, path, accept=accept)
        assert (answer.status, answer.headers["content-type"]) == (404, "application/json")
        assert msgspec.json.decode(answer.body)["code"] == "NotFound"
    assert ask(server, "/nonsense", "POST", accept=browser).headers["content-type"] == "application/json"
    assert ask(server, "/nonsense", accept=browser, host="evil.example").status == 403


def test_others_than_this_machine_are_refused(server: InProcessServer) -> None:
    answer = ask(server, "/", host="evil.example")
    assert answer.status == 403
    assert ask(server, "/events?of=/", origin="http://evil.example").status == 403


def test_every_page_says_what_it_needs() -> None:
    assert {page.name for page in PAGES.values() if page.needs == ANYBODY} == set()
    assert {page.method for page in PAGES.values()} == {"GET", "POST"}
    assert [page.name for page in PAGES.values() if page.method == "POST"] == ["ResetGroup"]
