"""`/topics` and `/topics/NAME`: topics; a topic with its partitions, configuration and consumers."""

import asyncio
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.coordinator.group_runner import GroupRunner
from headrace.broker.group_lag import lag_of, topics_read
from headrace.broker.partition.partition import Partition
from headrace.broker.topics.live import LiveTopic
from headrace.console import charts, text
from headrace.console.downloads import MOST_DOWNLOADED, Download, asked_format
from headrace.console.pagination import ROWS as PAGE_ROWS
from headrace.console.pagination import Slice, cut
from headrace.console.registry import (
    NotFound,
    View,
    ViewRequest,
    page,
    shown_rules,
    topic_resource,
    topic_rule,
)
from headrace.console.sampler import Traffic
from headrace.console.server_data import led_here
from headrace.console.views.overview import chart
from headrace.groups.classic.states import in_words
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.config import describe

COLUMNS = (
    "topic", "partitions", "records", "records_in_per_second", "records_out_per_second", "retention_ms",
    "retention_bytes", "storage",
)  # fmt: skip
"""Columns of a download. Records are of partitions led here."""


@page("Topics", "/topics", needs=shown_rules(ResourceType.TOPIC))
async def topics(ask: ViewRequest) -> View:
    """Return the list of topics."""
    sampler, cluster = ask.figures.sampler, ask.broker.cluster

    def rate(live: LiveTopic, which: str) -> float:
        found = sampler.topics.get((cluster, live.topic.name))
        return 0.0 if found is None else float(getattr(found, which))

    async with ask.listing() as pace:
        found = await cut(
            list(ask.broker.topics),
            ask.query,
            pace,
            rows=MOST_DOWNLOADED if asked_format(ask.query) else PAGE_ROWS,
            name=lambda live: str(live.topic.name),
            sorts={
                "in": lambda live: rate(live, "records_in"),
                "out": lambda live: rate(live, "records_out"),
                "partitions": lambda live: len(live.partitions),
                "records": records_in,
            },
            shows=lambda live: ask.sees(ResourceType.TOPIC, live.topic.name),
        )
    if told := asked_format(ask.query):
        rows = (
            {
                "topic": live.topic.name,
                "partitions": len(live.partitions),
                "records": None if live.has_gaps else records_in(live),
                "records_in_per_second": rate(live, "records_in"),
                "records_out_per_second": rate(live, "records_out"),
                "retention_ms": live.config.retention_ms,
                "retention_bytes": live.config.retention_bytes,
                "storage": "native" if live.entry_per_record else "log",
            }
            for live in found.rows
        )
        return View(template="", title="", download=Download(told, "topics", COLUMNS, rows))
    cells = {"found": text.count(found.found)}
    for number, live in enumerate(found.rows):
        name = live.topic.name
        traffic = sampler.topics.get((cluster, name))
        cells |= {
            f"{number}.name": text.name(name),
            f"{number}.href": text.topic(name, cluster),
            f"{number}.browse": text.records(name, cluster),
            f"{number}.partitions": text.count(len(live.partitions)),
            f"{number}.in": text.short(rate(live, "records_in")),
            f"{number}.out": text.short(rate(live, "records_out")),
            f"{number}.spark": "" if traffic is None else charts.spark(traffic.incoming.last(charts.SPARK_COUNT)),
            f"{number}.records": "-" if live.has_gaps else text.short(records_in(live)),
            f"{number}.size": text.size(await ask.figures.size(ask.broker, name)),
            f"{number}.retention": retention(live),
            f"{number}.kind": "native" if live.entry_per_record else "",
        }
    return View(template="topics.html", title="Topics", data=found, cells=cells, shape=shape_of(found))


def shape_of(found: Slice) -> tuple[object, ...]:
    """Return the structure of a list page."""
    return len(found.rows), found.pages, found.found


def records_in(live: LiveTopic) -> int:
    """Return the records in partitions led here; for a native topic, the offsets."""
    return sum(partition.log_end - partition.log_start for partition in led_here(live))


def retention(live: LiveTopic) -> str:
    """Return the retention as text."""
    time_ms, size = live.config.retention_ms, live.config.retention_bytes
    parts = [text.span(time_ms / 1000)] if time_ms >= 0 else []
    if size >= 0:
        parts.append(f"{text.size(size)} per partition")
    return ", ".join(parts) or "unlimited"


_MOST_READERS = 50
EDITING = (Operation.ALTER, Operation.ALTER_CONFIGS, Operation.DELETE)
"""A viewer with one of these may open the forms that alter or delete a topic."""


@page(
    "Topic",
    "/topics/{name:path}",
    needs=(
        topic_rule(Operation.DESCRIBE),
        topic_rule(Operation.DESCRIBE_CONFIGS),
        *shown_rules(ResourceType.GROUP),
    ),
)
async def topic(ask: ViewRequest) -> View:
    """Return the page of a topic."""
    broker, sampler = ask.broker, ask.figures.sampler
    live = live_topic(ask)
    name = live.topic.name
    async with ask.listing() as pace:
        found = await cut(list(live.partitions), ask.query, pace, name=lambda each: f"{each.index:08}")
    readers = await _readers(ask, name)
    cells = {
        **_traffic(ask, sampler.topics.get((broker.cluster, name))),
        "records": "-" if live.has_gaps else text.count(records_in(live)),
        "size": text.size(await ask.figures.size(broker, name)),
    }
    most = max((each.log_end - each.log_start for each in found.rows if each.leader is None), default=0)
    for number, each in enumerate(found.rows):
        cells |= _partition(number, each, most)
    for number, (_, state, lag) in enumerate(readers):
        cells |= {f"reader.{number}.lag": text.count(lag), f"reader.{number}.state": state}
    data = {
        "name": name,
        "shown": text.name(name),
        "native": live.entry_per_record,
        "id": str(live.topic.id),
        "partitions": found,
        "indexes": [each.index for each in found.rows],
        "streams": [text.name(each.stream) if broker.topics.is_stored(live) else "-" for each in found.rows],
        "count": len(live.partitions),
        "retention": retention(live),
        "config": _config(broker, live),
        "readers": [(text.name(group), text.group(group, broker.cluster)) for group, _, _ in readers],
        "browse": text.records(name, broker.cluster),
        "path": text.topic(name),
        "produce": text.produce(name, broker.cluster) if _may(ask, name, Operation.WRITE) else "",
        "edit": text.edit(name, broker.cluster) if _may(ask, name, *EDITING) else "",
    }
    return View(
        template="topic.html",
        title=text.name(name),
        data=data,
        cells=cells,
        shape=(shape_of(found), [group for group, _, _ in readers], dict(live.topic.config)),
    )


def _may(ask: ViewRequest, name: str, *operations: Operation) -> bool:
    resource = topic_resource(ask, name)
    return ask.figures.writes and any(ask.may(topic_rule(operation), resource) for operation in operations)


def _traffic(ask: ViewRequest, seen: Traffic | None) -> dict[str, str]:
    return {
        "in": text.short(0 if seen is None else seen.records_in),
        "out": text.short(0 if seen is None else seen.records_out),
        "in.bytes": text.size(0 if seen is None else seen.bytes_in) + "/s",
        "out.bytes": text.size(0 if seen is None else seen.bytes_out) + "/s",
        **chart(
            ask,
            "traffic",
            {"in": None if seen is None else seen.incoming, "out": None if seen is None else seen.outgoing},
        ),
    }


def _partition(number: int, partition: Partition, most: int) -> dict[str, str]:
    if partition.leader is not None:
        cells = dict.fromkeys((f"{number}.start", f"{number}.end", f"{number}.records"), "-")
        return cells | {f"{number}.bar": "0", f"{number}.epoch": f"led by broker {partition.leader}"}
    records = partition.log_end - partition.log_start
    return {
        f"{number}.start": text.count(partition.log_start),
        f"{number}.end": text.count(partition.log_end),
        f"{number}.records": text.count(records),
        f"{number}.bar": str(round(100 * records / most)) if most else "0",
        f"{number}.epoch": str(partition.leader_epoch),
    }


def live_topic(ask: ViewRequest) -> LiveTopic:
    """Return the topic in the path. Raises NotFound."""
    name = ask.path["name"]
    if not ask.broker.topics.has(name):
        raise NotFound(f"Unknown topic {text.name(name)}.")
    return ask.broker.topics.get(name)


async def _reads(broker: Broker, runner: GroupRunner, topic: str) -> bool:
    """Return whether a group has committed offsets or members in a topic. Thousands of assignments are slow to read."""
    async for each in broker.lane.pace().each(topics_read(broker, runner)):
        if each == topic:
            return True
    return False


async def _readers(ask: ViewRequest, topic: str) -> list[tuple[str, str, int | None]]:
    found = []
    broker = ask.broker
    for runner in list(broker.groups.runners()):
        if not ask.sees(ResourceType.GROUP, runner.name):
            continue
        if await _reads(broker, runner, topic):
            lag = lag_of(broker, runner, [topic])
            found.append((runner.name, in_words(runner.machine.state_name), lag))
            if len(found) == _MOST_READERS:
                break
        await asyncio.sleep(0)  # slow with many partitions
    return sorted(found)


def _config(broker: Broker, live: LiveTopic) -> list[dict[str, Any]]:
    entries = describe(live.topic.config, broker.settings.topic_defaults)
    return [
        {
            "name": each.key.name,
            "value": text.name(each.value),
            "source": each.source.value,
            "doc": each.key.doc,
        }
        for each in sorted(entries, key=lambda each: (each.source.value != "topic", each.key.name))
        if each.key.effective
    ]
