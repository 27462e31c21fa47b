"""`/pipeline`: archives and declared pipelines, from their reports, which it can remove."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Final, TypeVar

import msgspec

from headrace.broker.partition.source import COMMITTED
from headrace.broker.topics.live import LiveTopic
from headrace.console import charts, text
from headrace.console.pagination import cut
from headrace.console.registry import Redirect, View, ViewRequest, cluster_rule, page
from headrace.console.server_data import led_here
from headrace.console.views.overview import clock
from headrace.console.views.topics import shape_of
from headrace.groups.offsets import record_lag
from headrace.metrics.runs import ARCHIVE_RUNS, PIPELINE_RUNS, ArchiveReport, Commit, FlowReport, PipelineReport, State
from headrace.security.access.required_acls import CLUSTER_NAME, SERVER, Operation, Resource, ResourceType, Rule

_T = TypeVar("_T")
_COMMITS = 8
_MOST_RUNS, _MOST_FLOWS = 20, 50
_REPORTS: Final[dict[str, type[ArchiveReport] | type[PipelineReport]]] = {
    ARCHIVE_RUNS: ArchiveReport,
    PIPELINE_RUNS: PipelineReport,
}


_ALTER_SERVER: Final = Rule(
    operation=Operation.ALTER,
    type=ResourceType.CLUSTER,
    resources=lambda ask: [Resource(ResourceType.CLUSTER, CLUSTER_NAME, SERVER)],
)
"""Reports are common to all virtual clusters."""


@page("Pipeline", "/pipeline", needs=(cluster_rule(Operation.DESCRIBE),))
async def pipeline(ask: ViewRequest) -> View:
    """Return the page of archives and pipelines that have reported."""
    return await _view(ask)


@page(
    "ForgetRun",
    "/pipeline",
    method="POST",
    live=False,
    needs=(cluster_rule(Operation.DESCRIBE), _ALTER_SERVER),
)
async def forget(ask: ViewRequest) -> View:
    """Remove the report of an archive or a pipeline that has ended, or return why not."""
    kind, name = ask.form.get("kind", ""), ask.form.get("id", "")
    reports = dict(await _told(ask, kind, _REPORTS[kind])) if kind in _REPORTS else {}
    report = reports.get(name)
    if report is None:
        return await _view(ask, refused="The report does not exist. It may have been removed before.")
    if report.runs(ask.broker.clock.now_ms()):
        return await _view(ask, refused="It is running, and would report again. Stop it first.")
    await ask.broker.storage.documents.save({(kind, name): None})
    subject = f"{report.topic} into {report.table}" if isinstance(report, ArchiveReport) else report.folder
    ask.changed("ForgetRun", f"report removed: {subject}")
    raise Redirect(text.link("/pipeline", ask.broker.cluster, {"q": ask.query.get("q"), "page": ask.query.get("page")}))


async def _view(ask: ViewRequest, refused: str = "") -> View:
    archives = await _told(ask, ARCHIVE_RUNS, ArchiveReport)
    async with ask.listing() as pace:
        found = await cut(archives, ask.query, pace, name=lambda each: str(each[1].topic), rows=20)
    runs = sorted(await _told(ask, PIPELINE_RUNS, PipelineReport), key=lambda run: -run[1].told_ms)[:_MOST_RUNS]
    now_ms = ask.broker.clock.now_ms()
    cells: dict[str, str] = {}
    for number, (_, archive) in enumerate(found.rows):
        cells |= _archive(ask, str(number), archive, now_ms)
    for number, (_, run) in enumerate(runs):
        cells |= _run(ask, f"run.{number}", run, now_ms)
    data = {
        "archives": [_lasting(ask, name, archive, now_ms) for name, archive in found.rows],
        "slice": found,
        "runs": [
            {
                "id": name,
                "ended": not run.runs(now_ms),
                "name": text.name(run.name),
                "folder": text.name(run.folder),
                "host": text.name(run.host),
                "flows": range(min(_MOST_FLOWS, len(run.flows))),
                "more": max(0, len(run.flows) - _MOST_FLOWS),
            }
            for name, run in runs
        ],
        "refused": refused,
        "writes": ask.figures.writes,
        "storage": text.name(shlex.quote(ask.figures.storage)),
        "self": text.link("/pipeline", ask.broker.cluster, {name: ask.query.get(name) for name in ("q", "page")}),
    }
    shape = (
        shape_of(found),
        [(name, archive.runs(now_ms), len(_last(archive))) for name, archive in found.rows],
        [(name, run.runs(now_ms), len(run.flows)) for name, run in runs],
    )
    return View(template="pipeline.html", title="Pipeline", data=data, cells=cells, shape=shape)


def _lasting(ask: ViewRequest, name: str, archive: ArchiveReport, now_ms: int) -> dict[str, object]:
    there = ask.figures.clusters.default.topics.has(archive.topic)
    options = ["--topic", archive.topic, "--table", archive.table, "--redis", ask.figures.storage]
    return {
        "id": name,
        "ended": not archive.runs(now_ms),
        "forget": text.name(shlex.join(["headrace", "archive", "--forget", *options])),
        "topic": text.name(archive.topic),
        "href": text.topic(archive.topic) if there else "",
        "table": text.name(archive.table),
        "host": text.name(archive.host),
        "group": text.name(archive.group) if archive.group else "",
        "group_href": text.group(archive.group) if archive.group else "",
        "commits": range(len(_last(archive))),
    }


def _lag(ask: ViewRequest, archive: ArchiveReport, now_ms: int) -> tuple[int | None, bool]:
    """Return the records that the table lacks, and whether other brokers may have more. None: unknown.

    The report of an archive that has ended does not count the records since.
    """
    if archive.runs(now_ms):
        return archive.lag, False
    topics = ask.figures.clusters.default.topics  # archives read no other cluster
    if not archive.topic_id or not topics.has(archive.topic):
        return None, False
    live = topics.get(archive.topic)
    return _behind(live, archive.ends if str(live.topic.id) == archive.topic_id else {})


def _flow_lag(ask: ViewRequest, flow: FlowReport) -> tuple[int | None, bool]:
    """Return the same for a flow that has ended. Its topics may be those of other servers."""
    topics = ask.figures.clusters.default.topics
    lags = [
        _behind(live, each.ends)
        for each in flow.topics
        if topics.has(each.topic) and str((live := topics.get(each.topic)).topic.id) == each.id
    ]
    known = [lag for lag, _ in lags if lag is not None]
    more = len(known) < len(flow.topics) or any(more for _, more in lags)
    return (sum(known) if known else None), more


def _behind(live: LiveTopic, ends: Mapping[int, int]) -> tuple[int | None, bool]:
    if live.has_gaps:
        return None, False
    led = led_here(live)
    lags = [record_lag(ends.get(each.index), each.log_start, each.visible_end(COMMITTED)) for each in led]
    return (sum(lags) if led else None), len(led) < len(live.partitions)


def _lag_text(lag: int | None, *, more: bool) -> str:
    return text.count(lag) + ("+" if more and lag is not None else "")


def _last(archive: ArchiveReport) -> Sequence[Commit]:
    return archive.commits[::-1][:_COMMITS]


def _archive(ask: ViewRequest, place: str, archive: ArchiveReport, now_ms: int) -> dict[str, str]:
    fresh = None if archive.fresh_ms is None else max(0.0, (now_ms - archive.fresh_ms) / 1000)
    lag, more = _lag(ask, archive, now_ms)
    if lag == 0 and not more and not archive.runs(now_ms):
        fresh = 0.0
    cells = {
        **_state(place, archive, now_ms),
        f"{place}.lag": _lag_text(lag, more=more),
        f"{place}.fresh": "-" if fresh is None else text.span(round(fresh) if fresh >= 1 else 0) + " ago",
        f"{place}.rows": text.count(archive.rows),
        f"{place}.files": text.count(archive.files),
        f"{place}.bytes": text.size(archive.bytes),
        f"{place}.version": text.count(archive.version),
        f"{place}.failures": text.count(archive.group_failures + archive.unreadable),
        f"{place}.spark": charts.spark([float(commit.rows) for commit in archive.commits]),
    }
    for slot, commit in zip_longest(range(_COMMITS), _last(archive)):
        cells |= {
            f"{place}.{slot}.time": "" if commit is None else clock(commit.time_ms),
            f"{place}.{slot}.rows": "" if commit is None else text.count(commit.rows),
            f"{place}.{slot}.took": "" if commit is None else text.span(commit.seconds),
            f"{place}.{slot}.version": "" if commit is None else str(commit.version),
        }
    return cells


def _run(ask: ViewRequest, place: str, run: PipelineReport, now_ms: int) -> dict[str, str]:
    cells = {
        **_state(place, run, now_ms),
        f"{place}.began": clock(run.started_ms),
        f"{place}.took": text.span(max(0, run.told_ms - run.started_ms) // 1000),
    }
    for slot, flow in enumerate(run.flows[:_MOST_FLOWS]):
        lag, more = (flow.behind, False) if run.runs(now_ms) else _flow_lag(ask, flow)
        cells |= _flow(f"{place}.{slot}", flow) | {f"{place}.{slot}.behind": _lag_text(lag, more=more)}
    return cells


def _state(place: str, told: ArchiveReport | PipelineReport, now_ms: int) -> dict[str, str]:
    silent = told.state is State.RUNNING and not told.runs(now_ms)
    state = "silent" if silent else told.state.value
    return {
        f"{place}.state": state,
        f"{place}.badge": f"badge {state}",
        f"{place}.told": clock(told.told_ms),
        f"{place}.problem": text.name(told.problem),
    }


def _flow(place: str, flow: FlowReport) -> dict[str, str]:
    return {
        f"{place}.name": text.name(flow.name),
        f"{place}.state": text.name(flow.state),
        f"{place}.read": text.count(flow.read),
        f"{place}.written": text.count(flow.written),
        f"{place}.took": "-" if flow.seconds is None else text.span(flow.seconds),
    }


async def _told(ask: ViewRequest, kind: str, what: type[_T]) -> list[tuple[str, _T]]:
    found = []
    for name, document in (await ask.broker.storage.documents.load(kind)).items():
        try:
            found.append((name, msgspec.json.decode(document, type=what)))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return found
