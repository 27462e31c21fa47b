"""Consumer groups in Redis: `broker.ports.GroupStorage`."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import monotonic

from headrace.groups.model import (
    DropBalanced,
    DropGroup,
    DropMember,
    DropPositions,
    GroupChange,
    Position,
    SaveBalanced,
    SaveHeader,
    SaveMember,
    SavePositions,
    StoredGroup,
    TopicPartition,
    is_nothing,
)
from headrace.storage.fence import Fence
from headrace.storage.layout import registry
from headrace.storage.layout.keys import Keyspace
from headrace.storage.redis.protocol import Reply
from headrace.storage.redis.replies import checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.errors import StorageAway, StorageUnavailable

_LOADED_AT_ONCE = 64
_ENCODED_AT_ONCE = 1_000
"""Changes that are encoded in one turn of the loop; a group may have 10 000 members."""
_PIECE = 500
"""Positions that one script stores: a millisecond of the event loop, and one of Redis, for which all others wait."""
_MERGED = "MmPp"
"""Kinds of changes of which several are told as one."""
_STANDS_S = 30.0
"""How long ago a server may have been found to go by the present view when it writes a group for the first time. What
would shut it out of one that another coordinator found missing meanwhile stands for a minute (`load_group`)."""


class RedisGroups:
    """Members, positions and balanced sections of groups."""

    def __init__(
        self, scripts: Scripts, keyspace: Keyspace, fence: Fence, now_s: Callable[[], float] = monotonic
    ) -> None:
        """`now_s`: seconds that also pass while the process is stopped."""
        self._now_s = now_s
        self._scripts = scripts
        self._keyspace = keyspace
        self._fence = fence
        self._registered: set[str] = set()
        self._registering: dict[str, object] = {}
        """Groups that are being entered in the list, and which call does it; not those that are others' since."""
        self._doubted: dict[str, int] = {}
        """Groups whose leaving the list had no answer, and under which number. It may come in when they are made again:
        until there is a higher number, which shuts it out, each write enters them in the list."""

    async def _call(self, name: str, keys: list[str], view: str | int, *arguments: str | bytes | int) -> Reply:
        return await self._scripts.run(name, keys, view, *arguments)

    async def _register(self, group: str, view: int, what: str) -> None:
        await self._call("register_group", [self._keyspace.groups, self._keyspace.epoch], view, what, group)

    def _epoch(self, view: int) -> str:
        """What a group is written under: it shuts out what was given up, and is below the next view's number."""
        given_up = self._fence.given_up
        return f"{view}.{given_up:06}" if given_up else str(view)

    def _keys(self, group: str) -> list[str]:
        return [self._keyspace.group(group), self._keyspace.members(group), self._keyspace.positions(group)]

    async def load(self) -> list[StoredGroup]:
        """Every group with its members and positions, in name order. Older servers can write to none from here on."""
        names = await self.names()
        groups: list[StoredGroup] = []
        for start in range(0, len(names), _LOADED_AT_ONCE):
            groups += await asyncio.gather(*(self._load(name) for name in names[start : start + _LOADED_AT_ONCE]))
        self._registered = set(names).difference(self._doubted)
        # A crash came between the dropping of a group and its leaving the list.
        for group in groups:
            if is_nothing(group):
                await self.save(group.name, [DropGroup()])
        return [group for group in groups if not is_nothing(group)]

    async def names(self) -> list[str]:
        """Every group's name, in order; some of them may have ended."""
        key = self._keyspace.groups
        stored = checked(await self._scripts.shards.at(key).call("SMEMBERS", key))
        return sorted(name.decode() for name in stored)

    async def load_one(self, name: str, view: int) -> StoredGroup:
        """A group, empty if there is none; who owned it under an older view can write to it no more. Raises Fenced."""
        return await self._load(name, view)

    async def _load(self, name: str, view: int | None = None) -> StoredGroup:
        number = self._fence.number if view is None else view
        header, members, positions, sections = await self._call("load_group", self._keys(name), self._epoch(number))
        return StoredGroup(
            name=name,
            header=registry.header(header) if header else None,
            members=tuple(registry.member(text) for text in members),
            positions={
                registry.partition(field): registry.position(text)
                for field, text in zip(positions[::2], positions[1::2], strict=True)
            },
            balanced=tuple(sorted((registry.section(text) for text in sections), key=lambda each: each.topic)),
        )

    async def save(self, group: str, changes: Sequence[GroupChange], view: int | None = None) -> None:
        """Apply changes, as the owner by the view of this number; None: by the present one."""
        number = self._fence.number if view is None else view
        entered = False
        for piece in _pieces(changes):
            told = await _told(piece)
            if not entered:
                # Right before the first write, which depends on it.
                await self._enter(group, number)
                entered = True
            await self._save(group, number, told)
        if changes and isinstance(changes[-1], DropGroup):
            self._registered.discard(group)
            await self._leave(group, number)

    async def _save(self, group: str, number: int, told: Sequence[str | bytes | int]) -> None:
        try:
            await self._call("save_group", self._keys(group), self._epoch(number), *told)
        except StorageAway:
            raise
        except StorageUnavailable:
            self._fence.give_up()
            raise

    async def _enter(self, group: str, number: int) -> None:
        """Have a group in the list. Raises Fenced where there is a later view, or was until a moment ago."""
        if group in self._registered:
            return
        call = self._registering[group] = object()
        standing = False
        while not standing:
            began_s = self._now_s()
            await self._register(group, number, "add")
            standing = self._now_s() - began_s < _STANDS_S
        if number > self._doubted.get(group, -1):
            self._doubted.pop(group, None)
            if self._registering.get(group) is call:
                self._registered.add(group)
        self._registering.pop(group, None)

    async def _leave(self, group: str, number: int) -> None:
        try:
            await self._register(group, number, "remove")
        except StorageAway:
            raise
        except StorageUnavailable:
            self._doubted[group] = max(number, self._doubted.get(group, number))
            raise

    def forget(self, group: str) -> None:
        """Somebody else owns a group from now on, and may drop it."""
        self._registered.discard(group)
        self._registering.pop(group, None)


def _pieces(changes: Sequence[GroupChange]) -> Iterator[Sequence[GroupChange]]:
    """The changes, to be stored one piece after the other: very many positions, and the rest with the last."""
    positions: dict[TopicPartition, Position] = {}
    rest: list[GroupChange] = []
    for change in changes:
        if isinstance(change, DropGroup | DropPositions):
            # All of it or nothing: what goes ahead would be dropped, or would be missed if the rest did not come.
            yield changes
            return
        if isinstance(change, SavePositions):
            positions.update(change.positions)
        else:
            rest.append(change)
    left = iter(positions.items())
    for _ in range(_PIECE, len(positions), _PIECE):
        yield [SavePositions(dict(islice(left, _PIECE)))]
    last = dict(left)
    yield [*rest, SavePositions(last)] if last else rest


async def _told(changes: Sequence[GroupChange]) -> list[str | bytes | int]:
    """Changes as the script takes them: each kind with the number of its arguments."""
    runs: list[tuple[str, list[str | bytes]]] = []
    for place, change in enumerate(changes, 1):
        kind, arguments = _encoded(change)
        if runs and kind in _MERGED and kind == runs[-1][0]:
            runs[-1][1].extend(arguments)
        else:
            runs.append((kind, arguments))
        if place % _ENCODED_AT_ONCE == 0:
            await asyncio.sleep(0)
    return [part for kind, arguments in runs for part in (kind, len(arguments), *arguments)]


def _encoded(change: GroupChange) -> tuple[str, list[str | bytes]]:  # noqa: PLR0911 - one line per change
    """Its kind, and its arguments."""
    match change:
        case SaveHeader(header):
            return "H", [registry.encode(header)]
        case SaveMember(member):
            return "M", [member.member_id, registry.encode(member)]
        case DropMember(member_id):
            return "m", [member_id]
        case SavePositions(positions):
            return "P", [
                part
                for partition, position in positions.items()
                for part in (registry.partition_field(partition), registry.encode(position))
            ]
        case DropPositions(partitions):
            return "p", [registry.partition_field(partition) for partition in partitions]
        case SaveBalanced(section):
            return "B", [section.topic, registry.encode(section)]
        case DropBalanced(topic):
            return "b", [topic]
        case DropGroup():
            return "X", []
