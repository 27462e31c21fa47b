"""Broker epochs, heartbeats and the list of changes in Redis: `broker.ports.MembershipStorage`."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import redis.asyncio
from redis.exceptions import NoScriptError

from headrace.membership.participant import Counters, Proposal
from headrace.membership.view import Leader, Member, View, leader_pairs
from headrace.storage.fence import Fence
from headrace.storage.layout import LAYOUT_VERSION, TRANSACTIONS_LAYOUT_VERSION, registry
from headrace.storage.layout.keys import Keyspace
from headrace.storage.layout.scripts import script
from headrace.storage.redis.clients import ERRORS
from headrace.topics.errors import StorageUnavailable

_AT_ONCE = 1_000
_NOTHING = "0-0"
"""Id before all changes."""
_SENDING = frozenset({"writelines", "drain"})
"""Attributes that redis-py reads from None when it closes a connection while another task sends over it."""
_CLOSED = "the handler is closed"
"""Text in uvloop's RuntimeError for a write to a connection that has been closed."""
T = TypeVar("T")


class RedisMembership:
    """Cluster membership in Redis, over a separate connection.

    If Redis does not respond, its methods raise StorageUnavailable.
    """

    def __init__(self, client: "redis.asyncio.Redis", fence: Fence, keyspace: Keyspace | None = None) -> None:
        self._client = client
        self._fence = fence
        self._keys = keyspace or Keyspace()

    async def beat(self, me: Member, counter: int, known: View | None) -> tuple[View | None, Counters, str]:
        """Store the heartbeat of a broker.

        Returns:
            The view (None if none exists), all heartbeats, and the id of the last change.
        """
        keys = [self._keys.view, self._keys.heartbeats, self._keys.changes]
        arguments: list[str | bytes | int] = [
            registry.heartbeat_field(me),
            counter,
            0 if known is None else known.number,
        ]
        number, members, before, last, counters = await self._run("view_beat", keys, arguments)
        view: View | None = None
        if number:
            view = registry.view(number, members, before) if members else known
        return view, registry.heartbeats(counters), last.decode()

    async def change(self, proposal: Proposal) -> View:
        """Make a proposal the view, unless another broker was faster, and return the current view."""
        keys = [self._keys.view, self._keys.heartbeats, self._keys.epoch, self._keys.changes, self._keys.version]
        fields = [registry.heartbeat_field(member) for member in proposal.members]
        arguments: list[str | bytes | int] = [
            proposal.expected,
            proposal.before,
            TRANSACTIONS_LAYOUT_VERSION,
            registry.encode_members(proposal.members),
            *fields,
        ]
        return registry.view(*await self._run("view_change", keys, arguments))

    def enter(self, number: int) -> None:
        """Use the number of this view for all writes."""
        self._fence.number = number

    async def changes(self, after: str, wait_ms: int) -> list[tuple[str, registry.Change]]:
        """Return the changes after an id; wait for one if none exists."""
        found = await self._asked(lambda: self._client.xread({self._keys.changes: after}, _AT_ONCE, wait_ms))
        entries = found[0][1] if isinstance(found, list) and found else []
        if isinstance(found, dict):
            entries = [entry for streams in found.values() for part in streams for entry in part]
        return [(entry_id.decode(), registry.change(fields)) for entry_id, fields in entries]

    async def has_change(self, change_id: str) -> bool:
        """Return whether Redis still has a change.

        A failover may lose it, and new changes replace old ones. For the id before all changes, all of them must exist.
        """
        if change_id == _NOTHING:
            facts = await self._asked(lambda: self._client.xinfo_stream(self._keys.changes))
            return bool(facts["length"] == facts["entries-added"])
        return bool(await self._asked(lambda: self._client.xrange(self._keys.changes, change_id, change_id, 1)))

    async def last_change(self) -> str:
        """Return the id of the last change."""
        found: Any = await self._asked(lambda: self._client.xrevrange(self._keys.changes, count=1))
        return str(found[0][0].decode()) if found else _NOTHING

    async def leaders(self) -> dict[str, Leader]:
        """Return the latest leader of each stream."""
        found: Any = await self._asked(lambda: self._client.hgetall(self._keys.leaders))
        return {stream.decode(): Leader.of(stored.decode()) for stream, stored in found.items()}

    async def publish(self, leaders: Mapping[str, Leader]) -> None:
        """Publish the leaders of logs to all brokers."""
        keys = [self._keys.leaders, self._keys.epoch, self._keys.changes]
        await self._run("publish_leaders", keys, [self._fence.number, *leader_pairs(leaders)])

    async def _run(self, name: str, keys: list[str], arguments: Sequence[str | bytes | int]) -> Any:
        return await self._asked(lambda: _run(self._client, name, keys, arguments))

    @staticmethod
    async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await ask()
        except ERRORS as error:
            raise StorageUnavailable(f"Redis does not answer: {error}") from error
        except (AttributeError, RuntimeError) as error:
            if not _is_closed(error):
                raise
            raise StorageUnavailable("Redis does not answer: the connection was closed") from error


def _is_closed(error: AttributeError | RuntimeError) -> bool:
    """redis-py does not convert these errors of closed connections."""
    if isinstance(error, AttributeError):
        return error.obj is None and error.name in _SENDING
    return _CLOSED in str(error)


async def forget_view(client: "redis.asyncio.Redis", view_key: str) -> None:
    """Stop all brokers of a keyspace that is no longer served. Raises RedisError."""
    await client.delete(view_key)


async def begin_epoch(client: "redis.asyncio.Redis", epoch_key: str) -> int:
    """Begin a new epoch (the first is 1) under a lock that keeps other servers out. Raises RedisError."""
    return int(await _run(client, "begin_epoch", [epoch_key], []))


async def raise_layout(client: "redis.asyncio.Redis", keyspace: Keyspace) -> None:
    """Keep brokers without transactions out, also those that run and were declared dead. Raises RedisError."""
    versions = [LAYOUT_VERSION, TRANSACTIONS_LAYOUT_VERSION]
    await _run(client, "raise_layout", [keyspace.version, keyspace.view], versions)


async def _run(
    client: "redis.asyncio.Redis", name: str, keys: list[str], arguments: Sequence[str | bytes | int]
) -> Any:
    called = script(name)
    given: list[Any] = [*keys, *arguments]
    try:
        return await client.evalsha(called.sha, len(keys), *given)
    except NoScriptError:
        # EVAL stores the script where its keys are; SCRIPT LOAD would reach every primary of a cluster.
        return await client.eval(called.text, len(keys), *given)
