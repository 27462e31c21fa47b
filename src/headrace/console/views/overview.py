"""`/`: recent activity at a glance."""

from collections.abc import Callable
from datetime import UTC, datetime
from math import isnan
from typing import Any

from headrace.broker.runtime.scheduler import TimeSlice
from headrace.console import charts, event_list, text
from headrace.console.event_list import event_cells
from headrace.console.history import RANGES, History, chart_range
from headrace.console.pagination import cut
from headrace.console.registry import View, ViewRequest, cluster_rule, page, shown_rules
from headrace.metrics.counters import StoreFacts
from headrace.security.access.required_acls import Operation, ResourceType

SLOTS = 6
"""Lines of each short list."""
WIDTH, HEIGHT = 600, 150


@page(
    "Overview",
    "/",
    needs=(cluster_rule(Operation.DESCRIBE), *shown_rules(ResourceType.TOPIC, ResourceType.GROUP)),
)
async def overview(ask: ViewRequest) -> View:
    """Return the page of traffic, the busiest topics, the groups with the most lag, and recent events."""
    figures, sampler, cluster = ask.figures, ask.figures.sampler, ask.broker.cluster
    store, process = await figures.facts()
    topics = sum(1 for _ in ask.broker.topics)
    events = event_list.recent(ask)
    names = ask.broker.groups.names()
    async with ask.listing() as pace:
        busiest, behind = await _busiest(ask, cluster, pace), await _behind(ask, cluster, pace)
    cells = {
        "in": text.short(sampler.records_in.now),
        "out": text.short(sampler.records_out.now),
        "in.bytes": text.size(sampler.bytes_in.now) + "/s",
        "out.bytes": text.size(sampler.bytes_out.now) + "/s",
        "lag": text.short(None if isnan(sampler.lag.now) else sampler.lag.now),
        "lag.spark": charts.spark(sampler.lag.last()),
        "connections": text.count(sampler.connections.now),
        "connections.spark": charts.spark(sampler.connections.last()),
        **answering(store),
        "disk": text.size(process.disk_free_bytes),
        "topics": text.many(topics, "topic"),
        "partitions": text.many(ask.broker.topics.partitions, "partition"),
        "groups": text.many(len(names), "group"),
        **chart(ask, "traffic", {"in": sampler.records_in, "out": sampler.records_out}),
        **busiest,
        **behind,
        **event_cells(events, len(events)),
    }
    data = {
        "addresses": figures.addresses,
        "topics": range(min(SLOTS, topics)),
        "groups": range(min(SLOTS, len(names))),
        "events": range(len(events)),
        "events_of": event_list.chosen_kind(ask),
        "empty": not topics,
    }
    return View(
        template="overview.html",
        title="Overview",
        data=data,
        cells=cells,
        shape=(min(SLOTS, topics), min(SLOTS, len(names)), len(events)),
    )


def answering(store: StoreFacts | None) -> dict[str, str]:
    """Return whether Redis responds, and its memory."""
    if store is None:
        return {"store": "no response", "memory": "-", "memory.of": "no limit set"}
    most = store.memory_max_bytes
    return {
        "store": "connected",
        "memory": text.size(store.memory_bytes),
        "memory.of": f"of {text.size(most)}" if most else "no limit set",
    }


def chart(
    ask: ViewRequest, name: str, series: dict[str, History | None], top: Callable[[float], str] = text.short
) -> dict[str, str]:
    """Return a chart's cells: a line and an area per series, its values, and the axis maximum as `top` shows it.

    The query has the range. None is a series without history.
    """
    shown = chart_range(ask.query.get("range", ""))
    found = {each: [] if history is None else history.over(shown) for each, history in series.items()}
    most = charts.top(list(found.values()))
    # The finest range begins with two minutes, until it has more.
    count = max(charts.SPARK_COUNT, *map(len, found.values())) if shown is RANGES[0] else shown.kept
    cells = {
        f"{name}.top": top(most),
        f"{name}.count": str(count),
        f"{name}.since": text.span(count * shown.step_ms / 1000) + " ago",
    }
    for each, values in found.items():
        cells[f"{name}.{each}"] = charts.line(values, WIDTH, HEIGHT, most, count)
        cells[f"{name}.{each}.area"] = charts.area(values, WIDTH, HEIGHT, most, count)
        cells[f"{name}.{each}.values"] = ",".join("" if isnan(value) else f"{value:.0f}" for value in values)
    return cells


async def _busiest(ask: ViewRequest, cluster: str, pace: TimeSlice) -> dict[str, str]:
    found = await cut(
        [(name, each) for (where, name), each in ask.figures.sampler.topics.items() if where == cluster],
        {"sort": "traffic"},
        pace,
        name=lambda one: str(one[0]),
        sorts={"traffic": lambda one: float(one[1].records_in + one[1].records_out)},
        shows=lambda one: ask.sees(ResourceType.TOPIC, one[0]),
        rows=SLOTS,
    )
    cells = {}
    for slot, (name, each) in enumerate(_padded(found.rows)):
        cells[f"busy.{slot}.name"] = "" if name is None else text.name(name)
        cells[f"busy.{slot}.href"] = "" if name is None else text.topic(name, cluster)
        cells[f"busy.{slot}.in"] = "" if each is None else text.short(each.records_in)
        cells[f"busy.{slot}.out"] = "" if each is None else text.short(each.records_out)
        cells[f"busy.{slot}.spark"] = "" if each is None else charts.spark(each.incoming.last(charts.SPARK_COUNT))
    return cells


async def _behind(ask: ViewRequest, cluster: str, pace: TimeSlice) -> dict[str, str]:
    found = await cut(
        [(name, each) for (where, name), each in ask.figures.sampler.groups.items() if where == cluster],
        {"sort": "lag"},
        pace,
        name=lambda one: str(one[0]),
        sorts={"lag": lambda one: -1.0 if isnan(one[1].lag.now) else float(one[1].lag.now)},
        shows=lambda one: ask.sees(ResourceType.GROUP, one[0]),
        rows=SLOTS,
    )
    cells = {}
    for slot, (name, each) in enumerate(_padded(found.rows)):
        state = None if each is None or each.seen is None else each.seen
        cells[f"behind.{slot}.name"] = "" if name is None else text.name(name)
        cells[f"behind.{slot}.href"] = "" if name is None else text.group(name, cluster)
        cells[f"behind.{slot}.lag"] = "" if each is None else text.short(None if isnan(each.lag.now) else each.lag.now)
        cells[f"behind.{slot}.members"] = "" if state is None else str(state[2])
        cells[f"behind.{slot}.spark"] = "" if each is None else charts.spark(each.lag.last(charts.SPARK_COUNT))
    return cells


def _padded(rows: tuple[tuple[str, Any], ...]) -> tuple[tuple[str | None, Any], ...]:
    return rows + ((None, None),) * (SLOTS - len(rows))


def clock(time_ms: int) -> str:
    """Return the time of day in UTC."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%H:%M:%S} UTC"
