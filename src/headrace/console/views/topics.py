"""`/topics`: all of them, a page at a time."""

from headrace.broker.topics.live import LiveTopic
from headrace.console import charts, links, required_acls, text
from headrace.console.other_brokers import led_here
from headrace.console.pagination import Slice, cut
from headrace.console.registry import Ask, View, page
from headrace.security.access.required_acls import ResourceType


@page("Topics", "/topics", needs=required_acls.shown(ResourceType.TOPIC))
async def topics(ask: Ask) -> View:
    """Every topic with its traffic and its size."""
    sampler, cluster = ask.figures.sampler, ask.broker.cluster

    def rate(live: LiveTopic, which: str) -> float:
        found = sampler.topics.get((cluster, live.topic.name))
        return 0.0 if found is None else float(getattr(found, which))

    async with ask.listing() as pace:
        found = await cut(
            list(ask.broker.topics),
            ask.query,
            pace,
            name=lambda live: str(live.topic.name),
            sorts={
                "in": lambda live: rate(live, "records_in"),
                "out": lambda live: rate(live, "records_out"),
                "partitions": lambda live: len(live.partitions),
                "records": records_in,
            },
            shows=lambda live: ask.sees(ResourceType.TOPIC, live.topic.name),
        )
    cells = {"found": text.count(found.found)}
    for number, live in enumerate(found.rows):
        name = live.topic.name
        traffic = sampler.topics.get((cluster, name))
        cells |= {
            f"{number}.name": text.name(name),
            f"{number}.href": links.topic(name, cluster),
            f"{number}.browse": links.records(name, cluster),
            f"{number}.partitions": text.count(len(live.partitions)),
            f"{number}.in": text.short(rate(live, "records_in")),
            f"{number}.out": text.short(rate(live, "records_out")),
            f"{number}.spark": "" if traffic is None else charts.spark(traffic.incoming.last(charts.SPARK_COUNT)),
            f"{number}.records": text.short(records_in(live)) if not live.config.native else "-",
            f"{number}.size": text.size(await ask.figures.size(ask.broker, name)),
            f"{number}.retention": retention(live),
            f"{number}.kind": "native" if live.config.native else "",
        }
    return View(template="topics.html", title="Topics", data=found, cells=cells, shape=shape_of(found))


def shape_of(found: Slice) -> tuple[object, ...]:
    """What a list's page looks like, whatever is in it."""
    return len(found.rows), found.pages, found.found


def records_in(live: LiveTopic) -> int:
    """How many records the partitions led here have, as offsets tell; of a native topic, offsets."""
    return sum(partition.log_end - partition.log_start for partition in led_here(live))


def retention(live: LiveTopic) -> str:
    """How long and how much is kept."""
    time_ms, size = live.config.retention_ms, live.config.retention_bytes
    parts = [text.span(time_ms / 1000)] if time_ms >= 0 else []
    if size >= 0:
        parts.append(f"{text.size(size)} a partition")
    return ", ".join(parts) or "for ever"
