"""`/groups`: all consumer groups, a page at a time."""

from math import isnan, nan

from headrace.broker.coordinator.runner import Runner
from headrace.console import charts, links, required_acls, text
from headrace.console.pagination import cut
from headrace.console.registry import Ask, View, page
from headrace.console.views.topics import shape_of
from headrace.groups.classic.states import in_words
from headrace.security.access.required_acls import ResourceType


@page("Groups", "/groups", needs=required_acls.shown(ResourceType.GROUP, ResourceType.TOPIC))
async def groups(ask: Ask) -> View:
    """Every group with its members and its lag."""
    sampler, cluster = ask.figures.sampler, ask.broker.cluster

    def lag(runner: Runner) -> float:
        found = sampler.groups.get((cluster, runner.name))
        return nan if found is None else found.lag.now

    async with ask.listing() as pace:
        found = await cut(
            list(ask.broker.groups.runners()),
            ask.query,
            pace,
            name=lambda runner: str(runner.name),
            sorts={
                "lag": lambda runner: -1.0 if isnan(lag(runner)) else lag(runner),
                "members": lambda runner: runner.machine.size,
                "generations": lambda runner: runner.machine.generations,
            },
            shows=lambda runner: ask.sees(ResourceType.GROUP, runner.name),
        )
    cells = {"found": text.count(found.found)}
    for number, runner in enumerate(found.rows):
        known = sampler.groups.get((cluster, runner.name))
        state = runner.machine.state.value
        cells |= {
            f"{number}.name": text.name(runner.name),
            f"{number}.href": links.group(runner.name, cluster),
            f"{number}.state": in_words(state),
            f"{number}.badge": f"badge {state.lower()}",
            f"{number}.members": text.count(runner.machine.size),
            f"{number}.topics": text.name(", ".join(_topics(ask, runner))) or "-",
            f"{number}.lag": text.short(None if isnan(lag(runner)) else lag(runner)),
            f"{number}.spark": "" if known is None else charts.spark(known.lag.last(charts.SPARK_COUNT)),
            f"{number}.generations": text.count(runner.machine.generations),
        }
    return View(template="groups.html", title="Groups", data=found, cells=cells, shape=shape_of(found))


def _topics(ask: Ask, runner: Runner) -> list[str]:
    """The topics that a group has positions in, as far as they may be shown."""
    return sorted(
        {topic for topic in {place.topic for place in runner.positions} if ask.sees(ResourceType.TOPIC, topic)}
    )
