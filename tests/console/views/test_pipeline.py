"""The console's pipeline pages over HTTP, with hostile input shown as text."""

import re

import msgspec
import redis
from tests.console.visiting import EVIL, ask, safe

from headrace.console import views
from headrace.lakehouse.status.counters import Figures, Progress, TopicProgress
from headrace.lakehouse.status.document import Teller, Told
from headrace.metrics.runs import ARCHIVE_RUNS, PIPELINE_RUNS, ArchiveReport, Commit, FlowReport, PipelineReport, State
from headrace.testing import InProcessServer

views.load()


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
    answer = ask(server, "/pipeline")
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
    for text in ("failed", "no such topic", "bronze completed 1,234 1,200 4 s 34", "/home/me/shop", "after 42 s"):
        assert text in answer.text
