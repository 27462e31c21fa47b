"""Consumer groups in Redis: `broker.ports.GroupStorage`."""

from collections.abc import Sequence

import hiredis

from headrace.groups.model import (
    DropGroup,
    DropMember,
    DropPositions,
    GroupChange,
    SaveHeader,
    SaveMember,
    SavePositions,
    StoredGroup,
)
from headrace.keyspace import registry
from headrace.keyspace.entries import position_id
from headrace.keyspace.keys import Keyspace
from headrace.keyspace.scripts import script
from headrace.store.connection import Connection
from headrace.store.replies import checked

_SAVE = script("save_group")


class RedisGroups:
    """Members and positions of groups."""

    def __init__(self, connection: Connection, keyspace: Keyspace, epoch: int) -> None:
        self._connection = connection
        self._keyspace = keyspace
        self._epoch = epoch
        self._registered: set[str] = set()

    async def load_groups(self) -> list[StoredGroup]:
        """Every group with its members and positions."""
        names = checked(await self._connection.call("SMEMBERS", self._keyspace.groups))
        groups = [await self._load(name.decode()) for name in sorted(names)]
        self._registered = {group.name for group in groups}
        return groups

    async def _load(self, name: str) -> StoredGroup:
        keys = self._keyspace
        header = checked(await self._connection.call("HGET", keys.group(name), "header"))
        members = checked(await self._connection.call("HVALS", keys.members(name)))
        positions = checked(await self._connection.call("HGETALL", keys.positions(name)))
        return StoredGroup(
            name=name,
            header=None if header is None else registry.header(header),
            members=tuple(registry.member(text) for text in members),
            positions={
                registry.partition(field): registry.position(text)
                for field, text in zip(positions[::2], positions[1::2], strict=True)
            },
        )

    async def save_group(self, group: str, changes: Sequence[GroupChange]) -> None:
        """Apply all changes atomically."""
        keys = self._keyspace
        if group not in self._registered:
            checked(await self._connection.call("SADD", keys.groups, group))
            self._registered.add(group)
        arguments: list[str | bytes | int] = [self._epoch]
        for change in changes:
            arguments += _encoded(change)
        names = [keys.group(group), keys.members(group), keys.positions(group)]
        checked(await self._connection.call("EVALSHA", _SAVE.sha, len(names), *names, *arguments))
        if changes and isinstance(changes[-1], DropGroup):
            self._registered.discard(group)
            checked(await self._connection.call("SREM", keys.groups, group))

    async def mirror_position(self, stream: str, group: str, offset: int) -> None:
        """Show a position as the last delivered id of the stream's Redis consumer group, made when it is missing."""
        last = position_id(offset)
        reply = await self._connection.call("XGROUP", "SETID", stream, group, last)
        if isinstance(reply, hiredis.ReplyError):
            # NOGROUP, or no stream yet: nothing was ever appended.
            reply = await self._connection.call("XGROUP", "CREATE", stream, group, last, "MKSTREAM")
        checked(reply)


def _encoded(change: GroupChange) -> list[str | bytes]:
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
        case DropGroup():
            return ["X"]
