"""`/pipeline`: archives and declared pipelines, as they tell of themselves."""

from typing import TypeVar

import msgspec

from headrace.access.needs import Operation
from headrace.console import charts, links, needs, text
from headrace.console.listing import cut
from headrace.console.registry import Ask, View, page
from headrace.console.views.overview import clock
from headrace.console.views.topics import shape_of
from headrace.metrics import pipeline as pipelines
from headrace.metrics.archive import KIND, ArchiveTold, State
from headrace.metrics.pipeline import FlowTold, PipelineTold

_T = TypeVar("_T")
_SILENT_MS = 30_000
"""After so long without a word an archive is said to be silent: it tells something every five seconds."""
_COMMITS = 8
_MOST_RUNS, _MOST_FLOWS = 20, 50
_RUN_MS = 6 * 3600 * 1000
"""A run that says nothing for so long is taken for gone; Spark may be long at one flow."""


@page("Pipeline", "/pipeline", needs=(needs.server(Operation.DESCRIBE),))
async def pipeline(ask: Ask) -> View:
    """Every archive and every declared pipeline that told of itself."""
    found = cut(
        await _told(ask, KIND, ArchiveTold),
        ask.query,
        name=lambda each: str(each.topic),
        sorts={"name": lambda each: (each.topic, each.table)},
        rows=20,
    )
    now_ms = ask.broker.clock.now_ms()
    cells: dict[str, str] = {}
    for number, each in enumerate(found.rows):
        silent = each.state is State.RUNNING and now_ms - each.told_ms > _SILENT_MS
        state = "silent" if silent else each.state.value
        fresh = None if each.fresh_ms is None else max(0.0, (now_ms - each.fresh_ms) / 1000)
        cells |= {
            f"{number}.state": state,
            f"{number}.badge": f"badge {state}",
            f"{number}.lag": text.count(each.lag),
            f"{number}.fresh": "-" if fresh is None else text.span(round(fresh) if fresh >= 1 else 0) + " ago",
            f"{number}.rows": text.count(each.rows),
            f"{number}.files": text.count(each.files),
            f"{number}.bytes": text.size(each.bytes),
            f"{number}.version": text.count(each.version),
            f"{number}.failures": text.count(each.group_failures + each.unreadable),
            f"{number}.told": clock(each.told_ms),
            f"{number}.spark": charts.spark([float(commit.rows) for commit in each.commits]),
            f"{number}.problem": text.name(each.problem),
        }
        commits = each.commits[::-1][:_COMMITS]
        for slot in range(_COMMITS):
            commit = commits[slot] if slot < len(commits) else None
            cells |= {
                f"{number}.{slot}.time": "" if commit is None else clock(commit.time_ms),
                f"{number}.{slot}.rows": "" if commit is None else text.count(commit.rows),
                f"{number}.{slot}.took": "" if commit is None else text.span(commit.seconds),
                f"{number}.{slot}.version": "" if commit is None else str(commit.version),
            }
    data: dict[str, object] = {
        "archives": [
            {
                "topic": text.name(each.topic),
                "href": links.topic(each.topic, ask.broker.cluster) if ask.broker.topics.has(each.topic) else "",
                "table": text.name(each.table),
                "host": text.name(each.host),
                "group": text.name(each.group) if each.group else "",
                "group_href": links.group(each.group, ask.broker.cluster) if each.group else "",
                "commits": range(min(_COMMITS, len(each.commits))),
            }
            for each in found.rows
        ],
        "slice": found,
    }
    runs = sorted(await _told(ask, pipelines.KIND, PipelineTold), key=lambda run: -run.told_ms)[:_MOST_RUNS]
    for number, run in enumerate(runs):
        cells |= _run(f"run.{number}", run, now_ms)
    data["runs"] = [
        {
            "name": text.name(run.name),
            "folder": text.name(run.folder),
            "host": text.name(run.host),
            "flows": range(min(_MOST_FLOWS, len(run.flows))),
            "more": max(0, len(run.flows) - _MOST_FLOWS),
        }
        for run in runs
    ]
    shape = (
        shape_of(found),
        [(each.topic, each.table, min(_COMMITS, len(each.commits))) for each in found.rows],
        [(run.folder, run.host, len(run.flows)) for run in runs],
    )
    return View(template="pipeline.html", title="Pipeline", data=data, cells=cells, shape=shape)


def _run(place: str, run: PipelineTold, now_ms: int) -> dict[str, str]:
    silent = run.state is State.RUNNING and now_ms - run.told_ms > _RUN_MS
    state = "silent" if silent else run.state.value
    cells = {
        f"{place}.state": state,
        f"{place}.badge": f"badge {state}",
        f"{place}.began": clock(run.started_ms),
        f"{place}.told": clock(run.told_ms),
        f"{place}.took": text.span(max(0, run.told_ms - run.started_ms) // 1000),
        f"{place}.problem": text.name(run.problem),
    }
    for slot, flow in enumerate(run.flows[:_MOST_FLOWS]):
        cells |= _flow(f"{place}.{slot}", flow)
    return cells


def _flow(place: str, flow: FlowTold) -> dict[str, str]:
    return {
        f"{place}.name": text.name(flow.name),
        f"{place}.state": text.name(flow.state),
        f"{place}.read": text.count(flow.read),
        f"{place}.written": text.count(flow.written),
        f"{place}.took": "-" if flow.seconds is None else text.span(flow.seconds),
        f"{place}.behind": text.count(flow.behind),
    }


async def _told(ask: Ask, kind: str, what: type[_T]) -> list[_T]:
    """What was pushed of a kind; documents that are something else are passed over."""
    found = []
    for document in (await ask.broker.storage.documents.load(kind)).values():
        try:
            found.append(msgspec.json.decode(document, type=what))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return found
