"""`/pipeline`: the archives, as they tell of themselves."""

from typing import Any

import msgspec

from headrace.access.needs import Operation
from headrace.console import charts, links, needs, text
from headrace.console.listing import cut
from headrace.console.registry import Ask, View, page
from headrace.console.views.overview import clock
from headrace.console.views.topics import shape_of
from headrace.metrics.archive import KIND, ArchiveTold, State

_SILENT_MS = 30_000
"""After so long without a word an archive is said to be silent: it tells something every five seconds."""
_COMMITS = 8
_decode = msgspec.json.Decoder(ArchiveTold).decode


@page("Pipeline", "/pipeline", needs=(needs.server(Operation.DESCRIBE),))
async def pipeline(ask: Ask) -> View:
    """Every archive that told of itself."""
    found = cut(
        await _told(ask),
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
    data = {
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
    shape = (shape_of(found), [(each.topic, each.table, min(_COMMITS, len(each.commits))) for each in found.rows])
    return View(template="pipeline.html", title="Pipeline", data=data, cells=cells, shape=shape)


async def _told(ask: Ask) -> list[ArchiveTold]:
    """What the archives have pushed; documents that are something else are passed over."""
    found: list[Any] = []
    for document in (await ask.broker.storage.documents.load(KIND)).values():
        try:
            found.append(_decode(document))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return found
