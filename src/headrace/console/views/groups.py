"""`/groups` and `/groups/NAME`: consumer groups; a group with its members and lags, and its reset."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan, nan
from typing import Any

from headrace.aio.tasks import unheard
from headrace.broker import group_lag
from headrace.broker.coordinator.group_runner import GroupRunner
from headrace.broker.group_lag import CommittedOffset, Planned, Share
from headrace.broker.runtime.clock import pause
from headrace.console import charts, event_list, text
from headrace.console.downloads import MOST_DOWNLOADED, Download, Row, asked_format
from headrace.console.event_list import event_cells
from headrace.console.history import Ring
from headrace.console.pagination import ROWS as PAGE_ROWS
from headrace.console.pagination import Slice, cut
from headrace.console.registry import (
    MOVED,
    NotFound,
    Redirect,
    View,
    ViewRequest,
    group_rule,
    page,
    shown_rules,
    topic_resource,
)
from headrace.console.server_data import broker_text
from headrace.console.views.group_members import KINDS, Standing, member_rows, standing
from headrace.console.views.overview import chart
from headrace.console.views.share_groups import share_view
from headrace.console.views.topics import shape_of
from headrace.groups.classic.states import in_words
from headrace.groups.description import GroupDescription
from headrace.groups.model import GroupKind, TopicPartition
from headrace.groups.offsets import Target
from headrace.groups.sharing.group import ShareGroup
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.text import times
from headrace.text.escaping import quoted

_ROWS = 200
"""Maximum partitions shown at a time, and maximum members."""
_EVENTS = 12
_COLOURS = 8


COLUMNS = ("group", "type", "state", "members", "lag", "generations", "topics")
"""Columns of a download of groups."""
LAG_COLUMNS = ("group", "topic", "partition", "member", "committed_offset", "log_end_offset", "lag", "seconds_behind")
"""Columns of a download of one group."""


@page("Groups", "/groups", needs=shown_rules(ResourceType.GROUP, ResourceType.TOPIC))
async def groups(ask: ViewRequest) -> View:
    """Return the list of groups."""
    sampler, cluster = ask.figures.sampler, ask.broker.cluster

    def lag(runner: GroupRunner) -> float:
        found = sampler.groups.get((cluster, runner.name))
        return nan if found is None else found.lag.now

    async with ask.listing() as pace:
        found = await cut(
            list(ask.broker.groups.runners()),
            ask.query,
            pace,
            rows=MOST_DOWNLOADED if asked_format(ask.query) else PAGE_ROWS,
            name=lambda runner: str(runner.name),
            sorts={
                "lag": lambda runner: -1.0 if isnan(lag(runner)) else lag(runner),
                "members": lambda runner: runner.machine.size,
                "generations": lambda runner: runner.machine.generations,
            },
            shows=lambda runner: ask.sees(ResourceType.GROUP, runner.name),
        )
    if told := asked_format(ask.query):
        rows = (
            {
                "group": runner.name,
                "type": runner.machine.kind.value,
                "state": runner.machine.state_name,
                "members": runner.machine.size,
                "lag": None if isnan(lag(runner)) else int(lag(runner)),
                "generations": runner.machine.generations,
                "topics": _committed_topics(ask, runner),
            }
            for runner in found.rows
        )
        return View(template="", title="", download=Download(told, "groups", COLUMNS, rows))
    cells = {"found": text.count(found.found)}
    for number, runner in enumerate(found.rows):
        known = sampler.groups.get((cluster, runner.name))
        state = runner.machine.state_name
        cells |= {
            f"{number}.name": text.name(runner.name),
            f"{number}.href": text.group(runner.name, cluster),
            f"{number}.type": runner.machine.kind.value,
            f"{number}.state": in_words(state),
            f"{number}.badge": f"badge {state.lower()}",
            f"{number}.members": text.count(runner.machine.size),
            f"{number}.topics": text.name(", ".join(_committed_topics(ask, runner))) or "-",
            f"{number}.lag": text.short(None if isnan(lag(runner)) else lag(runner)),
            f"{number}.spark": "" if known is None else charts.spark(known.lag.last(charts.SPARK_COUNT)),
            f"{number}.generations": text.count(runner.machine.generations),
        }
    return View(template="groups.html", title="Groups", data=found, cells=cells, shape=shape_of(found))


def _committed_topics(ask: ViewRequest, runner: GroupRunner) -> list[str]:
    part = runner.machine.part
    topics = set(part.topics) if isinstance(part, ShareGroup) else {place.topic for place in runner.positions}
    return sorted(topic for topic in topics if ask.sees(ResourceType.TOPIC, topic))


@page(
    "Group",
    "/groups/{name:path}",
    needs=(group_rule(Operation.DESCRIBE), *shown_rules(ResourceType.TOPIC)),
)
async def group(ask: ViewRequest) -> View:
    """Return the page of a group."""
    return await _view(ask)


@page(
    "ResetGroup",
    "/groups/{name:path}",
    method="POST",
    live=False,
    needs=(group_rule(Operation.READ), group_rule(Operation.DESCRIBE), MOVED),
)
async def reset(ask: ViewRequest) -> View:
    """Reset the committed offsets of a group without members as the dry run showed, or return why not."""
    name = ask.path["name"]
    target, topic, wrong = _target(ask, ask.form)
    if target is None or wrong:
        return await _view(ask, refused=wrong or "Choose a target.")
    moves = await _moves(ask, target, topic)
    described = ask.broker.groups.describe(name)
    if described is not None and described.members:
        return await _view(
            ask, refused="The group has members, which would continue at their own offsets. Stop them first."
        )
    refused = await _committed(ask, moves)
    if refused is not None:
        return await _view(ask, refused=f"The reset was rejected: {refused}.")
    if moves:
        ask.changed("ResetGroup", f"committed offsets of group {name} reset: {len(moves)} partitions")
    raise Redirect(text.group(name, ask.broker.cluster, done=len(moves)))


async def _committed(ask: ViewRequest, moves: list[Planned]) -> str | None:
    """Return why a reset failed, if it did. A commit that takes too long continues, as one of a Kafka client."""
    commit = asyncio.ensure_future(group_lag.reset(ask.broker, ask.path["name"], moves))
    unheard(commit)
    late = asyncio.ensure_future(pause(ask.broker.clock, ask.broker.settings.offsets_commit_timeout_ms))
    try:
        await asyncio.wait({commit, late}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        late.cancel()
    return commit.result() if commit.done() else "Redis has not answered yet, and may still apply it"


async def _view(ask: ViewRequest, refused: str = "") -> View:
    name, broker, sampler = ask.path["name"], ask.broker, ask.figures.sampler
    described = _described(ask)
    runner = broker.groups.runner(name)
    if runner is not None and isinstance(runner.machine.part, ShareGroup):
        return await share_view(ask, runner.machine.part)
    known_members = standing(None if runner is None else runner.machine)
    present = await group_lag.shares(described, broker.lane.pace())
    await ask.figures.time_lags.refresh()
    everything = await group_lag.group_offsets(broker, name, present)
    found = [each for each in everything if ask.sees(ResourceType.TOPIC, each.place.topic)]
    if told := asked_format(ask.query):
        return View(template="", title="", download=Download(told, f"{name}-lag", LAG_COLUMNS, _lags(ask, found)))
    known = sampler.groups.get((broker.cluster, name))
    colours = _colours({} if known is None else known.colours, present)
    rows = await _page_of(found, ask, lambda each: _ordered(each.place.topic, each.place.partition))
    events = event_list.of_group(ask, name, _EVENTS)
    cells = {
        **_summary(described, described.state.value if runner is None else runner.machine.state_name, found),
        "members": text.count(len(present)),
        **_behind(ask, found, rows),
        **chart(ask, "lag", {"lag": None if known is None else known.lag}),
        **event_cells(events, len(events)),
        **_partitions(rows.rows, present, colours, {} if known is None else known.lags, known_members),
    }
    data = {
        **_lasting(ask, found, rows),
        "members": member_rows(present[:_ROWS], known_members, colours),
        "more_members": len(present[_ROWS:]),
        "plan": await _plan(ask, refused),
        "events": range(len(events)),
    }
    shape = (
        [(each.member, each.client, len(each.partitions)) for each in present[:_ROWS]],
        list(known_members.members.items())[:_ROWS],
        len(present[_ROWS:]),
        [each.place for each in rows.rows],
        len(found),
        len(events),
    )
    status = 400 if refused else 200
    return View(template="group.html", title=text.name(name), data=data, cells=cells, shape=shape, status=status)


def _summary(described: GroupDescription, state: str, found: Sequence[CommittedOffset]) -> dict[str, str]:
    lags = [each.lag for each in found if each.lag is not None]
    return {
        "state": in_words(state),
        "badge": f"badge {state.lower()}",
        "type": KINDS[described.kind],
        "counter": "generation" if described.kind is GroupKind.CLASSIC else "epoch",
        "generation": str(described.generation),
        "protocol": text.name(described.protocol) if described.protocol else "-",
        "partitions": text.count(len(found)),
        "worst": text.count(max(lags, default=None)),
        "lag": text.count(sum(lags)) if lags or not found else "-",
    }


def _lags(ask: ViewRequest, found: Sequence[CommittedOffset]) -> Iterator[Row]:
    name = ask.path["name"]
    for each in found:
        behind = ask.figures.time_lags.seconds(ask.broker.cluster, name, each.place)
        yield {
            "group": name,
            "topic": each.place.topic,
            "partition": each.place.partition,
            "member": each.member,
            "committed_offset": each.position,
            "log_end_offset": each.log_end,
            "lag": each.lag,
            "seconds_behind": 0.0 if each.lag == 0 else behind,
        }


def _behind(ask: ViewRequest, found: Sequence[CommittedOffset], rows: Slice) -> dict[str, str]:
    """Return how long the group is behind, at most and in each partition shown."""
    lags, name, cluster = ask.figures.time_lags, ask.path["name"], ask.broker.cluster

    def seconds(each: CommittedOffset) -> float | None:
        return 0.0 if each.lag == 0 else lags.seconds(cluster, name, each.place)

    known = [age for each in found if (age := seconds(each)) is not None]
    cells = {f"{number}.behind": text.span(seconds(each)) for number, each in enumerate(rows.rows)}
    return {**cells, "behind": text.span(max(known, default=None))}


def _lasting(ask: ViewRequest, found: Sequence[CommittedOffset], rows: Slice) -> dict[str, object]:
    name, cluster = ask.path["name"], ask.broker.cluster
    done = ask.query.get("done", "")
    return {
        "name": name,
        "shown": text.name(name),
        "topics": _topics(rows.rows, cluster),
        "rows": rows,
        # Links to other pages keep the planned reset.
        "asked": {each: ask.query.get(each) for each in ("to", "at", "topic", "range")},
        "choices": sorted({each.place.topic for each in found}),
        "path": text.group(name),
        "self": text.group(name, cluster),
        "done": done if done.isdecimal() else "",
        "writes": ask.figures.writes,
    }


def _described(ask: ViewRequest) -> GroupDescription:
    """Return the group in the path. Raises NotFound."""
    name, broker = ask.path["name"], ask.broker
    coordinator = broker.coordinator_of(name)
    if coordinator not in {broker.node_id, -1}:
        where = broker_text(broker, coordinator)
        raise NotFound(f"Group {text.name(name)} is coordinated by {where}. Open the console of that broker.")
    described = broker.groups.describe(name)
    if described is None:
        raise NotFound(f"Unknown group {text.name(name)}.")
    return described


def _topics(rows: Sequence[CommittedOffset], cluster: str) -> list[dict[str, object]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for number, each in enumerate(rows):
        found.setdefault(each.place.topic, []).append((number, each.place.partition))
    return [
        {"name": text.name(topic), "href": text.topic(topic, cluster), "partitions": partitions}
        for topic, partitions in found.items()
    ]


async def _page_of(everything: Sequence[Any], ask: ViewRequest, name: Callable[[Any], str]) -> Slice:
    """Return one page of a long list. All lists share the page number."""
    async with ask.listing() as pace:
        return await cut(everything, {"page": ask.query.get("page", "1")}, pace, name=name, rows=_ROWS)


def _ordered(topic: str, partition: int) -> str:
    return f"{topic}\0{partition:010}"


def _partitions(
    rows: Sequence[CommittedOffset],
    present: Sequence[Share],
    colours: dict[str, int],
    lags: Mapping[TopicPartition, Ring],
    known: Standing,
) -> dict[str, str]:
    owners = {each.member: each for each in present}
    cells: dict[str, str] = {}
    for number, each in enumerate(rows):
        cells |= _partition(number, each, owners.get(each.member or ""), colours, lags.get(each.place))
        coming = owners.get(known.next_owners.get(each.place, ""))
        cells[f"{number}.next"] = "" if coming is None else f"→ {text.name(coming.client or coming.member)}"
    return cells


def _partition(
    number: int, each: CommittedOffset, owner: Share | None, colours: dict[str, int], ring: Ring | None
) -> dict[str, str]:
    behind = "" if not each.lag else " behind"
    return {
        f"{number}.owner": "-" if owner is None else text.name(owner.client or owner.member),
        f"{number}.tile": f"tile m{colours[owner.member]}{behind}" if owner is not None else f"tile free{behind}",
        f"{number}.dot": f"dot m{colours[owner.member]}" if owner is not None else "dot free",
        f"{number}.position": text.count(each.position),
        f"{number}.end": text.count(each.log_end),
        f"{number}.lag": text.count(each.lag),
        f"{number}.spark": "" if ring is None else charts.spark(ring.last(charts.SPARK_COUNT)),
    }


def _colours(kept: dict[str, int], present: list[Share]) -> dict[str, int]:
    members = {each.member for each in present}
    for gone in kept.keys() - members:
        del kept[gone]
    free = sorted(set(range(_COLOURS)) - set(kept.values()), reverse=True)
    for member in sorted(members - kept.keys()):
        kept[member] = free.pop() if free else len(kept) % _COLOURS
    return kept


# The reset


async def _plan(ask: ViewRequest, refused: str) -> dict[str, Any] | None:
    given = ask.form or ask.query
    target, topic, wrong = _target(ask, given)
    if target is None and not wrong and not refused:
        return None
    moves: list[Planned] = []
    if target is not None and not wrong:
        moves = await _moves(ask, target, topic)
    page = await _page_of(moves, ask, lambda move: _ordered(move.topic, move.partition))
    command = ["groups", "reset", text.name(ask.path["name"]), f"--to-{given.get('to', 'latest')}"]
    if given.get("to") in {"offset", "time"}:
        command.append(text.name(given.get("at", "")))
    if topic is not None:
        command += ["--topic", text.name(topic)]
    return {
        "to": given.get("to", ""),
        "at": given.get("at", ""),
        "topic": topic or "",
        "wrong": wrong or refused,
        "moves": [
            (
                text.name(move.topic),
                move.partition,
                text.count(move.position),
                text.count(move.to),
                text.count(move.lag),
            )
            for move in page.rows
        ],
        "page": page,
        "count": len(moves),
        "command": text.kafka_command(ask.figures.bootstrap, *command, "--execute", cluster=ask.broker.cluster),
    }


async def _moves(ask: ViewRequest, target: Target, topic: str | None) -> list[Planned]:
    planned = await group_lag.plan_reset(ask.broker, ask.path["name"], target, topic)
    return [move for move in planned if ask.may(MOVED, topic_resource(ask, move.topic))]


def _target(ask: ViewRequest, given: Any) -> tuple[Target | None, str | None, str]:
    topic = given.get("topic") or None
    if topic is not None and not (ask.broker.topics.has(topic) and ask.sees(ResourceType.TOPIC, topic)):
        return None, None, f"Unknown topic {text.name(topic)}."
    try:
        return _where(given.get("to", ""), given.get("at", "").strip(), ask.broker.clock.now_ms()), topic, ""
    except ValueError as error:
        return None, topic, str(error)


def _where(to: str, at: str, now_ms: int) -> Target | None:
    match to:
        case "":
            return None
        case "earliest" | "latest":
            return Target(earliest=to == "earliest", latest=to == "latest")
        case "offset" if at.isascii() and at.isdecimal() and len(at) < 20:
            return Target(offset=int(at))
        case "time":
            return Target(time_ms=times.instant(at, now_ms))
    expected = "a whole number" if to == "offset" else "earliest, latest, offset or time"
    raise ValueError(f"expected {expected}, found {quoted(at if to == 'offset' else to)}")
