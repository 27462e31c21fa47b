"""Page of a share group: its members, its share partitions, and the records that members hold."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from headrace.broker.group_lag import Share, share_lag
from headrace.broker.partition.partition import Partition
from headrace.broker.sharing.partition import ShareLog
from headrace.console import event_list, text
from headrace.console.event_list import event_cells
from headrace.console.pagination import cut
from headrace.console.registry import View, ViewRequest
from headrace.console.views.group_members import KINDS, Progress, Standing, member_rows
from headrace.groups.classic.states import in_words
from headrace.groups.model import GroupKind, TopicPartition
from headrace.groups.sharing.group import ShareGroup
from headrace.groups.sharing.runs import Run
from headrace.groups.sharing.state import NOT_BEGUN, RecordState, ShareState, StoredRun
from headrace.security.access.required_acls import ResourceType
from headrace.topics.native import DEAD, RELEASED, SharePosition

_ROWS = 200
"""Maximum partitions, members and runs of held records shown at a time."""
_STORE_S = 1.0
_EVENTS = 12
_COLOURS = 8


class Holder(msgspec.Struct, frozen=True):
    """Records that a member has acquired."""

    place: TopicPartition
    records: str
    """Their offsets, or how many Redis knows."""
    member: str
    count: int | None = None
    """Deliveries. None: of each record, Redis knows it."""
    until_ms: int | None = None
    """End of the lock (ticks). None: Redis has the clock."""


class SharePlace(msgspec.Struct, frozen=True):
    """A share group in one partition."""

    place: TopicPartition
    start: int | None = None
    """The first offset that is not done. None: no member has fetched yet."""
    end: int | None = None
    """The first offset that was never acquired."""
    held: int | None = None
    """Records that members hold. None: the leader is another broker, or has no members."""
    waiting: int = 0
    """Records that can be delivered again."""
    dead: int = 0
    """Records that wait for their copies in the dead letter topic."""
    deliveries: int = 0
    """Most deliveries of a record that is not done."""
    lag: int | None = None
    holders: tuple[Holder, ...] = ()


async def share_view(ask: ViewRequest, part: ShareGroup) -> View:
    """Return the page of a share group."""
    name, cluster = part.name, ask.broker.cluster
    places = [
        TopicPartition(topic.topic, index)
        for topic in sorted(part.topics.values(), key=lambda topic: topic.topic)
        if ask.sees(ResourceType.TOPIC, topic.topic)
        for index in range(topic.partitions)
    ]
    async with ask.listing() as pace:
        query = {"page": ask.query.get("page", "1")}
        rows = await cut(places, query, pace, name=lambda each: f"{each.topic}\0{each.partition:010}", rows=_ROWS)

    async def one(place: TopicPartition) -> SharePlace:
        return await _look(ask, name, place)

    found: list[SharePlace] = []
    with suppress(TimeoutError):
        # The page shows its members while Redis does not answer.
        async with asyncio.timeout(_STORE_S):
            async for _, known in ask.broker.lane.a_few_at_once(list(rows.rows), one):
                found.append(known)
    found += map(SharePlace, list(rows.rows)[len(found) :])
    holders = [each for place in found for each in place.holders][:_ROWS]
    members, standing = _members(part)
    colours = {share.member: number % _COLOURS for number, share in enumerate(members)}
    events = event_list.of_group(ask, name, _EVENTS)
    clients = {share.member: text.name(share.client or share.member) for share in members}
    now_ms = ask.broker.groups.clock.ticks_ms()
    data = {
        "name": name,
        "shown": text.name(name),
        "path": text.group(name),
        "rows": rows,
        "members": member_rows(members[:_ROWS], standing, colours),
        "more_members": len(members[_ROWS:]),
        "places": [
            (each.place.partition, text.name(each.place.topic), text.topic(each.place.topic, cluster)) for each in found
        ],
        "holders": [
            (
                text.name(each.place.topic),
                each.place.partition,
                each.records,
                colours.get(each.member, 0),
                clients.get(each.member, text.name(each.member)),
            )
            for each in holders
        ],
        "events": range(len(events)),
    }
    cells = {
        "type": KINDS[GroupKind.SHARE],
        "state": in_words(part.state),
        "badge": f"badge {part.state.lower()}",
        "epoch": str(part.epoch),
        "members": text.count(len(members)),
        "partitions": text.count(len(places)),
        **_totals(found),
        **dict(_cells(found)),
        **event_cells(events, len(events)),
    }
    for number, each in enumerate(holders):
        cells[f"hold.{number}.count"] = "-" if each.count is None else str(each.count)
        left = None if each.until_ms is None else max(0, each.until_ms - now_ms) / 1000
        cells[f"hold.{number}.left"] = text.span(left)
    shape = (
        [(each.member, each.client, len(each.partitions)) for each in members[:_ROWS]],
        list(standing.members.items())[:_ROWS],
        [each.place for each in found],
        [(each.place, each.records, each.member) for each in holders],
        len(events),
    )
    return View(template="share-group.html", title=text.name(name), data=data, cells=cells, shape=shape)


def _span(run: Run) -> str:
    return str(run.first) if run.first == run.last else f"{run.first} to {run.last}"


def _members(part: ShareGroup) -> tuple[list[Share], Standing]:
    members = sorted(part.members.values(), key=lambda member: member.member_id)
    shares = [
        Share(
            member.member_id,
            member.client_id,
            member.client_host.lstrip("/"),
            tuple(
                TopicPartition(topic, index)
                for topic, (_, indexes) in sorted(part.assigned_to(member).items())
                for index in indexes
            ),
        )
        for member in members
    ]
    return shares, Standing({member.member_id: Progress(member.epoch, None) for member in members}, {})


async def _look(ask: ViewRequest, group: str, place: TopicPartition) -> SharePlace:
    """Return what this broker knows of a share partition. Raises StorageUnavailable."""
    broker = ask.broker
    if not broker.topics.has(place.topic) or place.partition >= len(broker.topics.get(place.topic).partitions):
        return SharePlace(place)
    partition = broker.topics.get(place.topic).partitions[place.partition]
    share = broker.shares.opened(group, partition)
    if share is not None and share.is_ready:
        return _live(place, share)
    state = await broker.shares.look(group, partition)
    if isinstance(state, SharePosition):
        return _native(place, state)
    return SharePlace(place) if state is None or state.spso == NOT_BEGUN else _stored(place, partition, state)


def _native(place: TopicPartition, position: SharePosition) -> SharePlace:
    pending = dict(position.pending)
    waiting, dead = pending.pop(RELEASED, 0), pending.pop(DEAD, 0)
    holders = tuple(Holder(place, text.many(count, "record"), member) for member, count in sorted(pending.items()))
    start = None if position.start == NOT_BEGUN else position.start
    return SharePlace(
        place, start, held=sum(pending.values()), waiting=waiting, dead=dead, lag=position.lag, holders=holders
    )


def _live(place: TopicPartition, share: ShareLog) -> SharePlace:
    runs = share.runs()
    return SharePlace(
        place,
        share.start,
        runs[-1].last + 1 if runs else share.start,
        sum(run.length for run in runs if run.held),
        _count(runs, RecordState.AVAILABLE),
        _count(runs, RecordState.DEAD),
        max((run.count for run in runs), default=0),
        share.lag,
        tuple(Holder(place, _span(run), run.member, run.count, run.until) for run in runs if run.held),
    )


def _count(runs: Sequence[Run | StoredRun], state: RecordState) -> int:
    return sum(run.length for run in runs if run.state is state)


def _stored(place: TopicPartition, partition: Partition, state: ShareState) -> SharePlace:
    return SharePlace(
        place,
        state.spso,
        state.spso + sum(run.length for run in state.runs),
        None,
        _count(state.runs, RecordState.AVAILABLE),
        _count(state.runs, RecordState.DEAD),
        max((run.count for run in state.runs), default=0),
        share_lag(partition, state),
    )


def _totals(found: Sequence[SharePlace]) -> dict[str, str]:
    lags = [each.lag for each in found if each.lag is not None]
    return {
        "lag": text.count(sum(lags)) if lags or not found else "-",
        "held": text.count(sum(each.held or 0 for each in found)),
        "waiting": text.count(sum(each.waiting for each in found)),
        "dead": text.count(sum(each.dead for each in found)),
    }


def _cells(found: Sequence[SharePlace]) -> Iterator[tuple[str, str]]:
    for number, each in enumerate(found):
        yield f"{number}.start", text.count(each.start)
        yield f"{number}.end", text.count(each.end)
        yield f"{number}.held", text.count(each.held)
        yield f"{number}.waiting", text.count(each.waiting)
        yield f"{number}.dead", text.count(each.dead)
        yield f"{number}.deliveries", text.count(each.deliveries) if each.deliveries else "-"
        yield f"{number}.lag", text.count(each.lag)
