"""Consumer groups in Redis: `broker.ports.GroupStorage`."""

import asyncio
from collections.abc import Sequence

from headrace.groups.model import (
    DropBalanced,
    DropGroup,
    DropMember,
    DropPositions,
    GroupChange,
    SaveBalanced,
    SaveHeader,
    SaveMember,
    SavePositions,
    StoredGroup,
)
from headrace.keyspace import registry
from headrace.keyspace.keys import Keyspace
from headrace.store.connection import Reply
from headrace.store.replies import checked
from headrace.store.scripts import Scripts

_LOADED_AT_ONCE = 64


class RedisGroups:
    """Members, positions and balanced sections of groups."""

    def __init__(self, scripts: Scripts, keyspace: Keyspace, epoch: int) -> None:
        self._scripts = scripts
        self._connection = scripts.connection
        self._keyspace = keyspace
        self._epoch = epoch
        self._registered: set[str] = set()

    async def _call(self, name: str, keys: list[str], *arguments: str | bytes | int) -> Reply:
        return await self._scripts.run(name, keys, self._epoch, *arguments)

    async def _register(self, group: str, what: str) -> None:
        await self._call("register_group", [self._keyspace.groups, self._keyspace.epoch], what, group)

    def _keys(self, group: str) -> list[str]:
        return [self._keyspace.group(group), self._keyspace.members(group), self._keyspace.positions(group)]

    async def load(self) -> list[StoredGroup]:
        """Every group with its members and positions, in name order. Older servers can write to none from here on."""
        stored = checked(await self._connection.call("SMEMBERS", self._keyspace.groups))
        names = sorted(name.decode() for name in stored)
        groups: list[StoredGroup] = []
        for start in range(0, len(names), _LOADED_AT_ONCE):
            groups += await asyncio.gather(*(self._load(name) for name in names[start : start + _LOADED_AT_ONCE]))
        self._registered = set(names)
        # A crash came between the dropping of a group and its leaving the list.
        for group in groups:
            if _is_nothing(group):
                await self.save(group.name, [DropGroup()])
        return [group for group in groups if not _is_nothing(group)]

    async def _load(self, name: str) -> StoredGroup:
        header, members, positions, sections = await self._call("load_group", self._keys(name))
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

    async def save(self, group: str, changes: Sequence[GroupChange]) -> None:
        """Apply all changes atomically."""
        if group not in self._registered:
            await self._register(group, "add")
            self._registered.add(group)
        await self._call("save_group", self._keys(group), *(part for change in changes for part in _encoded(change)))
        if changes and isinstance(changes[-1], DropGroup):
            self._registered.discard(group)
            await self._register(group, "remove")


def _is_nothing(group: StoredGroup) -> bool:
    return group.header is None and not (group.members or group.positions or group.balanced)


def _encoded(change: GroupChange) -> list[str | bytes]:  # noqa: PLR0911 - one line per change
    match change:
        case SaveHeader(header):
            return ["H", registry.encode(header)]
        case SaveMember(member):
            return ["M", member.member_id, registry.encode(member)]
        case DropMember(member_id):
            return ["m", member_id]
        case SavePositions(positions):
            return [
                part
                for partition, position in positions.items()
                for part in ("P", registry.partition_field(partition), registry.encode(position))
            ]
        case DropPositions(partitions):
            return [part for partition in partitions for part in ("p", registry.partition_field(partition))]
        case SaveBalanced(section):
            return ["B", section.topic, registry.encode(section)]
        case DropBalanced(topic):
            return ["b", topic]
        case DropGroup():
            return ["X"]
