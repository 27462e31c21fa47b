"""The view, heartbeats and changes in Redis: `broker.ports.MembershipStorage`."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import redis.asyncio
from redis.exceptions import NoScriptError

from headrace.membership.participant import Counters, Proposal
from headrace.membership.view import Leader, Member, View, leader_pairs
from headrace.storage.fence import Fence
from headrace.storage.layout import registry
from headrace.storage.layout.keys import Keyspace
from headrace.storage.layout.scripts import script
from headrace.storage.redis.clients import ERRORS
from headrace.topics.errors import StorageUnavailable

_AT_ONCE = 1_000
_NOTHING = "0-0"
"""The id before all changes."""
_SENDING = frozenset({"writelines", "drain"})
"""What redis-py asks of nothing where it closes a connection while another task sends by it."""
_CLOSED = "the handler is closed"
"""What uvloop's RuntimeError says where something is written to a connection that was closed meanwhile."""
T = TypeVar("T")


class RedisMembership:
    """What the brokers of a keyspace know of each other, over a connection beside that of the records."""

    def __init__(self, client: "redis.asyncio.Redis", fence: Fence, keyspace: Keyspace | None = None) -> None:
        """Begin.

        Args:
            client: stays the caller's to close.
            fence: the number under which everything is written: raised with each view.
            keyspace: the keys; the default ones if None.
        """
        self._client = client
        self._fence = fence
        self._keys = keyspace or Keyspace()

    async def beat(self, me: Member, counter: int, known: View | None) -> tuple[View | None, Counters, str]:
        """Say that a broker is alive.

        Returns:
            The view (None: there is none), everybody's heartbeats, and the id of the last change.

        Raises:
            StorageUnavailable: it did not get an answer.
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
        """Make a proposal the view, if nobody was faster; the view that there is now. Raises StorageUnavailable."""
        keys = [self._keys.view, self._keys.heartbeats, self._keys.epoch, self._keys.changes]
        fields = [registry.heartbeat_field(member) for member in proposal.members]
        arguments: list[str | bytes | int] = [
            proposal.expected,
            proposal.before,
            registry.encode_members(proposal.members),
            *fields,
        ]
        return registry.view(*await self._run("view_change", keys, arguments))

    def enter(self, number: int) -> None:
        """Write under the number of this view from now on."""
        self._fence.number = number

    async def changes(self, after: str, wait_ms: int) -> list[tuple[str, registry.Change]]:
        """What has changed behind a change's id; waits that long for something. Raises StorageUnavailable."""
        found = await self._asked(lambda: self._client.xread({self._keys.changes: after}, _AT_ONCE, wait_ms))
        entries = found[0][1] if isinstance(found, list) and found else []
        if isinstance(found, dict):
            entries = [entry for streams in found.values() for part in streams for entry in part]
        return [(entry_id.decode(), registry.change(fields)) for entry_id, fields in entries]

    async def has_change(self, change_id: str) -> bool:
        """Whether a change is still there: neither lost in a failover nor dropped for newer ones.

        Of the id before all of them: whether none has been dropped. Raises StorageUnavailable.
        """
        if change_id == _NOTHING:
            facts = await self._asked(lambda: self._client.xinfo_stream(self._keys.changes))
            return bool(facts["length"] == facts["entries-added"])
        return bool(await self._asked(lambda: self._client.xrange(self._keys.changes, change_id, change_id, 1)))

    async def last_change(self) -> str:
        """The id of the last change. Raises StorageUnavailable."""
        found: Any = await self._asked(lambda: self._client.xrevrange(self._keys.changes, count=1))
        return str(found[0][0].decode()) if found else _NOTHING

    async def leaders(self) -> dict[str, Leader]:
        """Stream -> who has opened its log last. Raises StorageUnavailable."""
        found: Any = await self._asked(lambda: self._client.hgetall(self._keys.leaders))
        return {stream.decode(): Leader.of(stored.decode()) for stream, stored in found.items()}

    async def publish(self, leaders: Mapping[str, Leader]) -> None:
        """Tell every broker who has opened logs. Raises StorageUnavailable."""
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
    """Whether all that went wrong is that a connection was closed; redis-py hands that on as it comes."""
    if isinstance(error, AttributeError):
        return error.obj is None and error.name in _SENDING
    return _CLOSED in str(error)


async def forget_view(client: "redis.asyncio.Redis", view_key: str) -> None:
    """End every broker of a keyspace that nobody is meant to serve any more. Raises RedisError."""
    await client.delete(view_key)


async def begin_epoch(client: "redis.asyncio.Redis", epoch_key: str) -> int:
    """Begin a new epoch where a lock keeps other servers out already; returns it, 1 at first. Raises RedisError."""
    return int(await _run(client, "begin_epoch", [epoch_key], []))


async def _run(
    client: "redis.asyncio.Redis", name: str, keys: list[str], arguments: Sequence[str | bytes | int]
) -> Any:
    """Run a script where its keys are. Raises RedisError."""
    called = script(name)
    given: list[Any] = [*keys, *arguments]
    try:
        return await client.evalsha(called.sha, len(keys), *given)
    except NoScriptError:
        # Sent whole it is kept there; SCRIPT LOAD would ask each of a cluster's primaries.
        return await client.eval(called.text, len(keys), *given)
