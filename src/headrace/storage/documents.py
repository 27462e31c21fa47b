"""Documents in Redis, and the locks for changes that take a broker several steps: `broker.ports.DocumentStorage`.

A lock is as Redis' page "Distributed Locks with Redis" has it for one server: a key with a token and a time to live.
That alone would not be safe, since a broker that is paused for long enough has lost the lock without knowing it. So the
script that writes checks the token, too.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import random

from headrace.aio.tasks import end
from headrace.membership.view import ALONE, Lock
from headrace.metrics.unreadable_values import WHOLE, Unreadable
from headrace.storage.fence import Fence
from headrace.storage.layout.keys import Keyspace
from headrace.storage.redis.replies import checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.errors import Fenced, LockLost, StorageFull, StorageUnavailable, StorageUnreachable, TopicError


class RedisDocuments:
    """Small values that the APIs keep: one hash for each kind."""

    def __init__(
        self, scripts: Scripts, keyspace: Keyspace, fence: Fence, unreadable: Unreadable | None = None
    ) -> None:
        """`unreadable`: where those who read documents note what they had to skip."""
        self.unreadable = unreadable or Unreadable()
        self._scripts = scripts
        self._keyspace = keyspace
        self._fence = fence
        self._locks = Locks(scripts, keyspace)

    async def load(self, kind: str) -> dict[str, bytes]:
        """Every document of a kind by id, in id order."""
        key = self._keyspace.documents(kind)
        found = checked(await self._scripts.shards.at(key).call("HGETALL", key))
        # A name that is no text is nothing that a server wrote; its document is skipped by whoever decodes it.
        pairs = sorted(zip(found[::2], found[1::2], strict=True))
        return {name.decode("utf-8", "surrogateescape"): value for name, value in pairs}

    async def keep(self, kind: str, name: str, document: bytes) -> bytes:
        """Store a document unless there is one; see `broker.ports.DocumentStorage.keep`.

        Where the kind's key holds something else the given one holds until this server ends: what was made with a
        stored one is refused.
        """
        try:
            return await self._keep(kind, name, document)
        except (Fenced, StorageFull, StorageUnavailable):
            raise
        except TopicError as error:
            self.unreadable.note(kind, WHOLE, error)
            return document

    async def _keep(self, kind: str, name: str, document: bytes) -> bytes:
        key = self._keyspace.documents(kind)
        connection = self._scripts.shards.at(key)
        # Where it exists already it is only read: a server has to start while Redis is full, or takes no writes.
        kept: bytes | None = checked(await connection.call("HGET", key, name))
        if kept is None:
            checked(await connection.call("HSETNX", key, name, document))
            kept = checked(await connection.call("HGET", key, name))
        assert kept is not None
        return kept

    @asynccontextmanager
    async def locked(self, name: str) -> AsyncIterator[Lock]:
        """See `broker.ports.DocumentStorage.locked`."""
        if not self._fence.shared:
            yield ALONE
            return
        async with self._locks.held(name) as lock:
            yield lock

    async def close(self) -> None:
        """Nothing of this goes on."""
        await self._locks.close()

    async def save(self, changes: Mapping[tuple[str, str], bytes | None], lock: Lock | None = None) -> dict[str, int]:
        """Apply all changes atomically; see `broker.ports.DocumentStorage.save`."""
        if not changes:
            return {}
        held = lock or ALONE
        kinds = {kind: place for place, kind in enumerate(sorted({kind for kind, _ in changes}), 1)}
        keyspace = self._keyspace
        # Without a lock any key of the same slot will do.
        keys = [keyspace.epoch, keyspace.view, keyspace.changes, keyspace.revisions, held.key or keyspace.epoch]
        keys += [keyspace.documents(kind) for kind in kinds]
        arguments: list[str | bytes | int] = [held.token, " ".join(kinds)]
        for (kind, name), value in changes.items():
            arguments += ["D", kinds[kind], name] if value is None else ["S", kinds[kind], name, value]
        revisions: list[int] = await self._fence.write(
            lambda number: self._scripts.run("save_documents", keys, number, *arguments)
        )
        for kind, name in changes:
            self.unreadable.clear(kind, name)
        return dict(zip(kinds, revisions, strict=False))


LEASE_MS = 5_000
"""After how long a lock is free that nobody has kept."""
_KEPT_S = LEASE_MS / 4000
_PATIENCE_S = 4 * LEASE_MS / 1000
"""How long to wait for others: longer than it takes to see that one of them has died."""
_AGAIN_S = 0.01
"""Between two tries. Who gave a lock back that others want leaves it alone for longer, so that they get it."""
_RETURNED_AGAIN_S = 0.1
"""Between two tries to give a lock back while Redis does not answer."""


class Locks:
    """The locks of one keyspace."""

    def __init__(self, scripts: Scripts, keyspace: Keyspace) -> None:
        self._scripts = scripts
        self._keyspace = keyspace
        self._free_again = 0.0
        self._returning: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[Lock]:
        """See `broker.ports.DocumentStorage.locked`."""
        key, token = self._keyspace.lock(name), secrets.token_hex(8)
        wanted = self._keyspace.wanted(name)
        keys = [key, self._keyspace.revisions, wanted]
        try:
            lock = Lock(key, token, await self._wait(keys, token))
        except (StorageUnreachable, LockLost):
            raise
        except StorageUnavailable:
            # It may be ours all the same.
            self._return_later(key, wanted, token)
            raise
        keeping = asyncio.get_running_loop().create_task(self._keep(key, token))
        try:
            yield lock
        finally:
            await end(keeping)
            try:
                if await self._leave(key, wanted, token):
                    self._free_again = asyncio.get_running_loop().time() + 3 * _AGAIN_S
            except TopicError:
                self._return_later(key, wanted, token)

    async def _leave(self, key: str, wanted: str, token: str) -> bool:
        """Give a lock back, if it is held by this token; whether others wait for it."""
        return bool(await self._scripts.run("leave_lock", [key, wanted], token))

    def _return_later(self, key: str, wanted: str, token: str) -> None:
        task = asyncio.get_running_loop().create_task(self._return(key, wanted, token), name="locks")
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _return(self, key: str, wanted: str, token: str) -> None:
        """Give a lock back whose last answer was lost, as soon as Redis answers: others would wait for nobody."""
        now = asyncio.get_running_loop().time
        until = now() + LEASE_MS / 1000
        while now() < until:  # then it is free by itself
            await asyncio.sleep(_RETURNED_AGAIN_S)
            try:
                await self._leave(key, wanted, token)
            except StorageUnreachable:
                # A Redis that stands still may take the lock yet, when it goes on.
                until = now() + LEASE_MS / 1000
            except TopicError:
                continue
            else:
                return

    async def close(self) -> None:
        """What is not given back by now is free by itself in a few seconds."""
        for task in tuple(self._returning):
            await end(task)

    async def _wait(self, keys: list[str], token: str) -> dict[str, int]:
        """Wait until it is ours; the revisions then."""
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._free_again - now()))
        until = now() + _PATIENCE_S
        while True:
            revisions = await self._take(keys, token)
            if revisions is not None:
                return revisions
            if now() >= until:
                raise LockLost(
                    f"other brokers have been making changes for {_PATIENCE_S:.0f} s: nothing was changed, try again"
                )
            await asyncio.sleep(_AGAIN_S * (0.5 + random()))

    async def _take(self, keys: list[str], token: str) -> dict[str, int] | None:
        taken, *found = await self._scripts.run("take_lock", keys, token, LEASE_MS)
        if not taken:
            return None
        return {kind.decode(): int(number) for kind, number in zip(found[::2], found[1::2], strict=True)}

    async def _keep(self, key: str, token: str) -> None:
        """Hold it for as long as it takes. What cannot be kept is lost, and whoever writes is told."""
        while True:
            await asyncio.sleep(_KEPT_S)
            with contextlib.suppress(TopicError):
                if not await self._scripts.run("keep_lock", [key], token, LEASE_MS):
                    return
