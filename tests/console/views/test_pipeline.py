"""The console's pipeline pages over HTTP, with hostile input shown as text."""

import re
from urllib.parse import urlencode

import msgspec
import redis
from confluent_kafka.admin import AdminClient
from tests.console.visiting import EVIL, Answer, ask, create, produce, safe

from headrace.console import views
from headrace.lakehouse.status.counters import Figures, Progress, TopicProgress
from headrace.lakehouse.status.document import Teller, Told
from headrace.metrics.runs import (
    ARCHIVE_RUNS,
    PIPELINE_RUNS,
    ArchiveReport,
    Commit,
    FlowReport,
    PipelineReport,
    State,
    TopicEnds,
)
from headrace.storage.layout import registry
from headrace.storage.layout.keys import Keyspace
from headrace.testing import InProcessServer

views.load()


def report(server: InProcessServer, name: str, told: ArchiveReport | PipelineReport) -> None:
    kind = ARCHIVE_RUNS if isinstance(told, ArchiveReport) else PIPELINE_RUNS
    with redis.Redis.from_url(server.storage) as storage:
        storage.hset(Keyspace().documents(kind), name, msgspec.json.encode(told))


def archive_of(server: InProcessServer, topic: str, state: State, **more: object) -> ArchiveReport:
    with redis.Redis.from_url(server.storage) as storage:
        stored = storage.hget(Keyspace().topics, topic)
    topic_id = "" if stored is None else str(registry.topic(stored).id)
    now_ms = server.clock.now_ms()
    told = ArchiveReport(topic=topic, table="./t", state=state, started_ms=1, told_ms=now_ms, lag=0, topic_id=topic_id)
    return msgspec.structs.replace(told, **more)


def shown_lag(server: InProcessServer, topic: str) -> str:
    html = safe(ask(server, f"/pipeline?q={topic}"))
    found = re.search(r'data-k="0.lag">([^<]*)<', html)
    assert found is not None
    return found[1]


def test_an_archive_that_reports_its_status_is_in_the_pipeline(server: InProcessServer) -> None:
    told = ArchiveReport(
        topic="plain", table=EVIL, group="archiver", host="here", started_ms=1, told_ms=server.clock.now_ms(),
        rows=1234, files=7, bytes=2_000_000, version=5, lag=66, fresh_ms=server.clock.now_ms() - 90_000,
        group_failures=2, commits=(Commit(1_700_000_000_000, 1234, 2.5, 5),), problem=EVIL,
    )  # fmt: skip
    with redis.Redis.from_url(server.storage) as storage:
        key = f"headrace:{{meta}}:documents:{ARCHIVE_RUNS}"
        storage.hset(key, "a", msgspec.json.encode(told))
        storage.hset(key, "b", b"\xff{")
    answer = ask(server, "/pipeline?q=plain")
    safe(answer)
    for text in ("running", "1 min 30 s ago", "66", "1,234", "2.0 MB", "archiver"):
        assert text in answer.text
    assert re.search(r'data-k="0.failures">2<', answer.html)


def test_runs_of_one_archive_are_counted_together_until_its_table_is_recreated(server: InProcessServer) -> None:
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


def test_a_declared_pipeline_that_reports_its_status_is_in_the_pipeline(server: InProcessServer) -> None:
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
    for text in ("failed", "no such topic", "bronze completed 1,234 1,200 4 s -", "/home/me/shop", "after 42 s"):
        assert text in answer.text


def test_an_archive_that_has_ended_shows_the_records_since(server: InProcessServer) -> None:
    create(server, ("lagging", 2))
    produce(server, "lagging", *((None, b"v") for _ in range(30)))
    produce(server, "lagging", *((None, b"v") for _ in range(5)), partition=1)
    for state in (State.DONE, State.STOPPED, State.FAILED):
        report(server, "ended", archive_of(server, "lagging", state, ends={0: 10, 1: 5}))
        assert shown_lag(server, "lagging") == "20"
    produce(server, "lagging", *((None, b"v") for _ in range(1_000)), partition=1)
    assert shown_lag(server, "lagging") == "1,020"
    report(server, "ended", archive_of(server, "lagging", State.RUNNING, ends={0: 10, 1: 5}, lag=7))
    assert shown_lag(server, "lagging") == "7", "its own report is at most seconds old"
    killed = archive_of(server, "lagging", State.RUNNING, ends={0: 30}, told_ms=server.clock.now_ms() - 60_000)
    report(server, "ended", killed)
    assert shown_lag(server, "lagging") == "1,005", "a partition that it has not reached"
    report(server, "ended", archive_of(server, "lagging", State.DONE, ends={0: 30, 1: 1_005}, fresh_ms=1))
    assert shown_lag(server, "lagging") == "0"
    assert "Complete up to 0 s ago" in ask(server, "/pipeline?q=lagging").text


def test_the_lag_of_an_ended_archive_is_unknown_or_that_of_the_topic_there_is(server: InProcessServer) -> None:
    create(server, ("recreated", 1))
    produce(server, "recreated", *((None, b"v") for _ in range(8)))
    told = archive_of(server, "recreated", State.DONE, ends={0: 8})
    report(server, "ended", msgspec.structs.replace(told, topic_id="", ends={}))
    assert shown_lag(server, "recreated") == "-", "a report of an earlier version"
    report(server, "ended", told)
    admin = AdminClient({"bootstrap.servers": server.kafka})
    admin.delete_topics(["recreated"])["recreated"].result(60)
    assert shown_lag(server, "recreated") == "-"
    create(server, ("recreated", 1))
    produce(server, "recreated", (None, b"v"), (None, b"v"))
    assert shown_lag(server, "recreated") == "2"


def test_a_flow_that_has_ended_shows_the_records_since(server: InProcessServer) -> None:
    create(server, ("flowing", 2), ("joined", 1))
    produce(server, "flowing", *((None, b"v") for _ in range(9)))
    produce(server, "joined", *((None, b"v") for _ in range(100)))
    now_ms = server.clock.now_ms()
    told = PipelineReport(name="flow", folder="/flow", state=State.DONE, started_ms=now_ms, told_ms=now_ms)

    def shown(state: State, *topics: TopicEnds) -> str:
        flow = FlowReport(name="bronze-lag", state="completed", behind=1, topics=topics)
        report(server, "flow", msgspec.structs.replace(told, state=state, flows=(flow,)))
        found = re.search(r"bronze-lag completed - - - (\S+)", ask(server, "/pipeline").text)
        assert found is not None
        return found[1]

    ids = {name: archive_of(server, name, State.DONE).topic_id for name in ("flowing", "joined")}
    flowing = TopicEnds(topic="flowing", id=ids["flowing"], ends={0: 2})
    joined = TopicEnds(topic="joined", id=ids["joined"], ends={0: 40})
    elsewhere = TopicEnds(topic="joined", id="of another server", ends={0: 40})
    assert shown(State.DONE, flowing) == "7"
    assert shown(State.FAILED, flowing, joined) == "67"
    assert shown(State.DONE, flowing, elsewhere) == "7+"
    assert shown(State.DONE, elsewhere) == "-"
    assert shown(State.RUNNING, flowing) == "1"


def test_the_card_of_a_run_that_has_ended_is_removed_by_its_own_form(server: InProcessServer) -> None:
    now_ms = server.clock.now_ms()
    run = PipelineReport(name="gone", folder="/gone", state=State.DONE, started_ms=now_ms, told_ms=now_ms)
    report(server, "archive", archive_of(server, "forgotten", State.STOPPED))
    report(server, "run", run)
    shown = ask(server, "/pipeline?q=forgotten")
    [cookie] = re.findall(r"headrace-csrf=[^;]*", shown.headers["set-cookie"])
    token = re.search(r'name="token" value="([0-9a-f]+)"', safe(shown))
    assert token is not None
    form = {"kind": ARCHIVE_RUNS, "id": "archive", "token": token[1]}

    def post(fields: dict[str, str], **headers: str) -> Answer:
        kept = {"content_type": "application/x-www-form-urlencoded", "cookie": cookie}
        return ask(server, "/pipeline?q=forgotten", "POST", urlencode(fields), **(kept | headers))

    assert [post(form, cookie="").status, post(form | {"token": "0" * 64}).status] == [403, 403]
    assert post(form, sec_fetch_site="cross-site").status == 403
    report(server, "archive", archive_of(server, "forgotten", State.RUNNING))
    assert "Stop it first." in post(form).text
    assert "Remove this card" not in ask(server, "/pipeline?q=forgotten").text.partition("gone")[0]
    report(server, "archive", archive_of(server, "forgotten", State.STOPPED))
    for other in ({"kind": "users"}, {"kind": PIPELINE_RUNS}, {"id": "absent"}):
        assert "The report does not exist." in post(form | other).text
    done = post(form)
    assert (done.status, done.headers["location"]) == (303, "/pipeline?q=forgotten")
    assert post(form | {"kind": PIPELINE_RUNS, "id": "run"}).status == 303
    with redis.Redis.from_url(server.storage) as storage:
        assert not storage.hexists(Keyspace().documents(ARCHIVE_RUNS), "archive")
        assert not storage.hexists(Keyspace().documents(PIPELINE_RUNS), "run")


def test_a_console_that_may_not_write_shows_the_command() -> None:
    with InProcessServer(oci_auth="off") as server:
        start = ask(server, "/pipeline").text
        assert f"headrace archive --topic flights --table ./flights-table --redis {server.storage}" in start
        assert "pip install" not in start
        report(server, "archive", archive_of(server, EVIL, State.STOPPED, table="./a b"))
        answer = ask(server, "/pipeline")
        safe(answer)
        assert "<form method" not in answer.html
        assert "headrace archive --forget --topic " in answer.text
        assert f"--table './a b' --redis {server.storage}" in answer.text
        refused = ask(server, "/pipeline", "POST", "kind=archive-runs&id=archive")
        assert (refused.status, b"read-only" in refused.body) == (403, True)
