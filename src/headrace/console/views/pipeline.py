"""`/pipeline`: archives and declared pipelines, from their reports."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import TypeVar

import msgspec

from headrace.console import charts, text
from headrace.console.pagination import cut
from headrace.console.registry import View, ViewRequest, cluster_rule, page
from headrace.console.views.overview import clock
from headrace.console.views.topics import shape_of
from headrace.metrics.runs import ARCHIVE_RUNS, PIPELINE_RUNS, ArchiveReport, Commit, FlowReport, PipelineReport, State
from headrace.security.access.required_acls import Operation

_T = TypeVar("_T")
_SILENT_MS = 30_000
"""An archive without a report for this long is silent. It reports every five seconds."""
_COMMITS = 8
_MOST_RUNS, _MOST_FLOWS = 20, 50
_RUN_MS = 6 * 3600 * 1000
"""A run without a report for this long is considered gone. One Spark flow may take long."""


@page("Pipeline", "/pipeline", needs=(cluster_rule(Operation.DESCRIBE),))
async def pipeline(ask: ViewRequest) -> View:
    """Return the page of archives and pipelines that have reported."""
    archives = await _told(ask, ARCHIVE_RUNS, ArchiveReport)
    async with ask.listing() as pace:
        found = await cut(archives, ask.query, pace, name=lambda each: str(each.topic), rows=20)
    runs = sorted(await _told(ask, PIPELINE_RUNS, PipelineReport), key=lambda run: -run.told_ms)[:_MOST_RUNS]
    now_ms = ask.broker.clock.now_ms()
    cells: dict[str, str] = {}
    for number, archive in enumerate(found.rows):
        cells |= _archive(str(number), archive, now_ms)
    for number, run in enumerate(runs):
        cells |= _run(f"run.{number}", run, now_ms)
    data = {
        "archives": [_lasting(ask, archive) for archive in found.rows],
        "slice": found,
        "runs": [
            {
                "name": text.name(run.name),
                "folder": text.name(run.folder),
                "host": text.name(run.host),
                "flows": range(min(_MOST_FLOWS, len(run.flows))),
                "more": max(0, len(run.flows) - _MOST_FLOWS),
            }
            for run in runs
        ],
    }
    shape = (
        shape_of(found),
        [(archive.topic, archive.table, len(_last(archive))) for archive in found.rows],
        [(run.folder, run.host, len(run.flows)) for run in runs],
    )
    return View(template="pipeline.html", title="Pipeline", data=data, cells=cells, shape=shape)


def _lasting(ask: ViewRequest, archive: ArchiveReport) -> dict[str, object]:
    cluster = ask.broker.cluster
    return {
        "topic": text.name(archive.topic),
        "href": text.topic(archive.topic, cluster) if ask.broker.topics.has(archive.topic) else "",
        "table": text.name(archive.table),
        "host": text.name(archive.host),
        "group": text.name(archive.group) if archive.group else "",
        "group_href": text.group(archive.group, cluster) if archive.group else "",
        "commits": range(len(_last(archive))),
    }


def _last(archive: ArchiveReport) -> Sequence[Commit]:
    return archive.commits[::-1][:_COMMITS]


def _archive(place: str, archive: ArchiveReport, now_ms: int) -> dict[str, str]:
    fresh = None if archive.fresh_ms is None else max(0.0, (now_ms - archive.fresh_ms) / 1000)
    cells = {
        **_state(place, archive, now_ms, _SILENT_MS),
        f"{place}.lag": text.count(archive.lag),
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


def _run(place: str, run: PipelineReport, now_ms: int) -> dict[str, str]:
    cells = {
        **_state(place, run, now_ms, _RUN_MS),
        f"{place}.began": clock(run.started_ms),
        f"{place}.took": text.span(max(0, run.told_ms - run.started_ms) // 1000),
    }
    for slot, flow in enumerate(run.flows[:_MOST_FLOWS]):
        cells |= _flow(f"{place}.{slot}", flow)
    return cells


def _state(place: str, told: ArchiveReport | PipelineReport, now_ms: int, silent_ms: int) -> dict[str, str]:
    silent = told.state is State.RUNNING and now_ms - told.told_ms > silent_ms
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
        f"{place}.behind": text.count(flow.behind),
    }


async def _told(ask: ViewRequest, kind: str, what: type[_T]) -> list[_T]:
    found = []
    for document in (await ask.broker.storage.documents.load(kind)).values():
        try:
            found.append(msgspec.json.decode(document, type=what))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return found
