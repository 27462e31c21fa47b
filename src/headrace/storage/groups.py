"""Consumer groups in Redis: `broker.ports.GroupStorage`."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import monotonic
from typing import TypeVar

import msgspec

from headrace.aio.tasks import in_slices
from headrace.groups.model import (
    DropBalanced,
    DropField,
    DropGroup,
    DropMember,
    DropOffsets,
    DropPending,
    GroupChange,
    OffsetAndMetadata,
    PendingKey,
    PendingOffset,
    SaveBalanced,
    SaveField,
    SaveHeader,
    SaveMember,
    SaveOffsets,
    SavePending,
    StoredGroup,
    TopicPartition,
    is_nothing,
)
from headrace.metrics.unreadable_values import Unreadable
from headrace.storage.fence import Fence
from headrace.storage.layout import registry
from headrace.storage.layout.keys import DEFAULT_CLUSTER, Keyspace
from headrace.storage.names import StoredNames
from headrace.storage.redis.protocol import Reply
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.errors import Fenced, StorageFull, StorageUnavailable, StorageUnreachable, TopicError

S = TypeVar("S")
T = TypeVar("T")
_MOST_SAID = 3
"""Maximum number of unreadable values of a group that are named."""
_LOADED_AT_ONCE = 64
_ENCODED_AT_ONCE = 1_000
"""Changes that are encoded in one turn of the event loop. A group may have 10,000 members."""
_PIECE = 500
"""Committed offsets per script: 1 ms of the event loop and 1 ms of Redis, which block all other clients."""
_MERGED = "MmPpTtFf"
"""Kinds of changes that are merged with their neighbors of the same kind."""


class RedisGroups:
    """Members, committed offsets and balanced sections of groups."""

    def __init__(
        self,
        scripts: Scripts,
        keyspace: Keyspace,
        fence: Fence,
        now_s: Callable[[], float] = monotonic,
        unreadable: Unreadable | None = None,
    ) -> None:
        """Use a keyspace. `now_s` continues while the process is stopped."""
        self._unreadable = unreadable or Unreadable()
        self._kind = "groups" if keyspace.cluster == DEFAULT_CLUSTER else f"groups:{keyspace.cluster}"
        self._scripts = scripts
        self._keyspace = keyspace
        self._fence = fence
        self._offline: set[str] = set()
        """Groups with keys of another type, as of the last load."""
        self._names = StoredNames(scripts, keyspace.groups, keyspace.epoch, self._unreadable, self._kind, now_s)

    async def _call(self, name: str, keys: list[str], view: str | int, *arguments: str | bytes | int) -> Reply:
        return await self._scripts.run(name, keys, view, *arguments)

    def _epoch(self, view: int) -> str:
        given_up = self._fence.given_up
        return f"{view}.{given_up:06}" if given_up else str(view)

    def _keys(self, group: str) -> list[str]:
        keys = self._keyspace
        return [keys.group(group), keys.members(group), keys.positions(group), keys.pending(group)]

    async def load(self) -> list[StoredGroup]:
        """Return all groups in name order, and fence servers with an older view."""
        names = await self.names()
        groups: list[StoredGroup] = []
        async for part in in_slices(names, self._load_readable, _LOADED_AT_ONCE):
            groups += [group for _, group in part if group is not None]
        self._names.loaded(names)
        # A crash occurred before it left the list.
        for group in groups:
            if is_nothing(group) and self._unreadable.reason(self._kind, group.name) is None:
                await self.save(group.name, [DropGroup()])
        return [group for group in groups if not is_nothing(group)]

    async def names(self) -> list[str]:
        """Return the names of all groups in order; some may no longer exist."""
        return await self._names.all()

    async def _load_readable(self, name: str) -> StoredGroup | None:
        try:
            return await self._load(name)
        except (Fenced, StorageFull, StorageUnavailable):
            raise
        except TopicError as error:
            self._unreadable.note(self._kind, name, error)
            self._offline.add(name)
            return None

    def is_offline(self, group: str) -> bool:
        """See `broker.ports.GroupStorage.is_offline`."""
        return group in self._offline

    async def drop_offline(self, group: str) -> None:
        """See `broker.ports.GroupStorage.drop_offline`."""
        await self.save(group, [DropGroup()])

    async def load_one(self, name: str, view: int | None = None) -> StoredGroup:
        """Return a group, empty if it does not exist, and fence older owners. Raises Fenced."""
        try:
            found = await self._load(name, view)
        except (Fenced, StorageFull, StorageUnavailable):
            raise
        except TopicError as error:
            self._unreadable.note(self._kind, name, error)
            self._offline.add(name)
            raise
        self._offline.discard(name)
        return found

    async def _load(self, name: str, view: int | None = None) -> StoredGroup:
        number = self._fence.number if view is None else view
        header, members, positions, sections, pending, others = await self._call(
            "load_group", self._keys(name), self._epoch(number)
        )
        # The group continues with its readable members and offsets.
        bad: list[str] = []
        places = zip(positions[::2], positions[1::2], strict=True)
        keys = zip(pending[::2], pending[1::2], strict=True)
        fields = zip(others[::2], others[1::2], strict=True)
        read_header = _readable(registry.header, header, "its header", bad) if header else None
        read_members = _all_readable(registry.member, members, "a member", bad)
        read_fields = _all_readable(registry.group_field, fields, "a member", bad)
        if bad:
            # Header and members belong together. Clients join again at the committed offsets.
            read_header, read_members, read_fields = None, [], []
        found = StoredGroup(
            name=name,
            header=read_header,
            members=tuple(read_members),
            positions=dict(_all_readable(_position, places, "a committed offset", bad)),
            balanced=tuple(
                sorted(_all_readable(registry.section, sections, "a section", bad), key=lambda each: each.topic)
            ),
            pending=dict(_all_readable(_pending, keys, "a pending offset", bad)),
            fields=tuple(each for each in read_fields if each is not None),
        )
        if bad:
            self._unreadable.note(self._kind, name, "; ".join(bad[:_MOST_SAID]))
        else:
            self._unreadable.clear(self._kind, name)
        return found

    async def save(self, group: str, changes: Sequence[GroupChange], view: int | None = None) -> None:
        """Apply changes as the coordinator in the view of this number (None: the present one)."""
        number = self._fence.number if view is None else view
        entered = False
        for piece in _pieces(changes):
            told = await _told(piece)
            if not entered:
                await self._names.enter(group, number)
                entered = True
            await self._save(group, number, told)
        if changes and isinstance(changes[-1], DropGroup):
            self._offline.discard(group)
            self._unreadable.clear(self._kind, group)
            await self._names.leave(group, number)

    async def _save(self, group: str, number: int, told: Sequence[str | bytes | int]) -> None:
        try:
            await self._call("save_group", self._keys(group), self._epoch(number), *told)
        except StorageUnreachable:
            raise
        except StorageUnavailable:
            self._fence.give_up()
            raise

    def forget(self, group: str) -> None:
        """Forget a group that another coordinator owns."""
        self._names.forget(group)


def _position(place: tuple[bytes, bytes]) -> tuple[TopicPartition, OffsetAndMetadata]:
    return registry.partition(place[0]), registry.position(place[1])


def _pending(pair: tuple[bytes, bytes]) -> tuple[PendingKey, PendingOffset]:
    return registry.pending_key(pair[0]), registry.pending(pair[1])


def _readable(decode: Callable[[S], T], text: S, what: str, bad: list[str]) -> T | None:
    try:
        return decode(text)
    except (ValueError, msgspec.MsgspecError) as error:
        bad.append(f"{what} is skipped: {error}")
        return None


def _all_readable(decode: Callable[[S], T], texts: Iterable[S], what: str, bad: list[str]) -> list[T]:
    return [value for text in texts if (value := _readable(decode, text, what, bad)) is not None]


def _pieces(changes: Sequence[GroupChange]) -> Iterator[Sequence[GroupChange]]:
    """Yield changes in pieces.

    Pending offsets are dropped with the last piece, so a failure between them leaves the transaction to be ended again.
    """
    positions: dict[TopicPartition, OffsetAndMetadata] = {}
    rest: list[GroupChange] = []
    for change in changes:
        if isinstance(change, DropGroup | DropOffsets):
            # Not divisible: the drop would remove what precedes it, or a failure would lose the rest.
            yield changes
            return
        if isinstance(change, SaveOffsets):
            positions.update(change.positions)
        else:
            rest.append(change)
    left = iter(positions.items())
    for _ in range(_PIECE, len(positions), _PIECE):
        yield [SaveOffsets(dict(islice(left, _PIECE)))]
    last = dict(left)
    yield [*rest, SaveOffsets(last)] if last else rest


async def _told(changes: Sequence[GroupChange]) -> list[str | bytes | int]:
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


def _encoded(change: GroupChange) -> tuple[str, list[str | bytes]]:  # noqa: C901, PLR0911 - one line per change
    match change:
        case SaveHeader(header):
            return "H", [registry.encode(header)]
        case SaveMember(member):
            return "M", [member.member_id, registry.encode(member)]
        case DropMember(member_id):
            return "m", [member_id]
        case SaveOffsets(positions):
            return "P", [
                part
                for partition, position in positions.items()
                for part in (registry.partition_field(partition), registry.encode(position))
            ]
        case DropOffsets(partitions):
            return "p", [registry.partition_field(partition) for partition in partitions]
        case SavePending(pending):
            return "T", [
                part for key, each in pending.items() for part in (registry.pending_field(key), registry.encode(each))
            ]
        case DropPending(keys):
            return "t", [registry.pending_field(key) for key in keys]
        case SaveBalanced(section):
            return "B", [section.topic, registry.encode(section)]
        case DropBalanced(topic):
            return "b", [topic]
        case SaveField(value):
            return "F", [value.field, registry.encode(value)]
        case DropField(field):
            return "f", [field]
        case DropGroup():
            return "X", []
