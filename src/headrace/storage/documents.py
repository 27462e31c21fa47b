"""Documents in Redis, and locks for changes in several steps: `broker.ports.DocumentStorage`.

A lock is a key with a token and a time to live, as in "Distributed Locks with Redis". A paused broker can lose it
without noticing, so the script that writes also checks the token.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
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
    """Small values of the APIs, in one hash per kind."""

    def __init__(
        self, scripts: Scripts, keyspace: Keyspace, fence: Fence, unreadable: Unreadable | None = None
    ) -> None:
        self.unreadable = unreadable or Unreadable()
        self._scripts = scripts
        self._keyspace = keyspace
        self._fence = fence
        self._locks = Locks(scripts, keyspace)

    async def load(self, kind: str) -> dict[str, bytes]:
        """Return all documents of a kind by id, in id order."""
        key = self._keyspace.documents(kind)
        found = checked(await self._scripts.shards.at(key).call("HGETALL", key))
        # Decoders skip documents whose name is not text.
        pairs = sorted(zip(found[::2], found[1::2], strict=True))
        return {name.decode("utf-8", "surrogateescape"): value for name, value in pairs}

    async def find(self, kind: str, names: Sequence[str]) -> dict[str, bytes]:
        """See `broker.ports.DocumentStorage.find`."""
        if not names:
            return {}
        key = self._keyspace.documents(kind)
        found = checked(await self._scripts.shards.at(key).call("HMGET", key, *names))
        return {name: value for name, value in zip(names, found, strict=True) if value is not None}

    async def keep(self, kind: str, name: str, document: bytes) -> bytes:
        """Store a document unless one exists; see `broker.ports.DocumentStorage.keep`.

        If the key has another type, the given document is valid until this server ends.
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
        # A server has to start while Redis is full or rejects writes.
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
        """Stop releasing locks."""
        await self._locks.close()

    async def save(self, changes: Mapping[tuple[str, str], bytes | None], lock: Lock | None = None) -> dict[str, int]:
        """Apply all changes atomically; see `broker.ports.DocumentStorage.save`."""
        if not changes:
            return {}
        held = lock or ALONE
        kinds = {kind: place for place, kind in enumerate(sorted({kind for kind, _ in changes}), 1)}
        keyspace = self._keyspace
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
"""Time to live of a lock."""
_KEPT_S = LEASE_MS / 4000
_PATIENCE_S = 4 * LEASE_MS / 1000
"""Seconds to wait for other brokers: longer than it takes to detect that one has died."""
_AGAIN_S = 0.01
"""Seconds between two attempts. After releasing a lock that others want, a broker waits longer, so that they get it."""
_RETURNED_AGAIN_S = 0.1
"""Seconds between two attempts to release a lock while Redis does not respond."""


class Locks:
    """Locks of one keyspace."""

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
            # The lock may have been taken.
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
        return bool(await self._scripts.run("leave_lock", [key, wanted], token))

    def _return_later(self, key: str, wanted: str, token: str) -> None:
        task = asyncio.get_running_loop().create_task(self._return(key, wanted, token), name="locks")
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _return(self, key: str, wanted: str, token: str) -> None:
        now = asyncio.get_running_loop().time
        until = now() + LEASE_MS / 1000
        while now() < until:  # after this time the lock expires
            await asyncio.sleep(_RETURNED_AGAIN_S)
            try:
                await self._leave(key, wanted, token)
            except StorageUnreachable:
                # A paused Redis may still take the lock when it resumes.
                until = now() + LEASE_MS / 1000
            except TopicError:
                continue
            else:
                return

    async def close(self) -> None:
        """Stop releasing locks. They expire."""
        for task in tuple(self._returning):
            await end(task)

    async def _wait(self, keys: list[str], token: str) -> dict[str, int]:
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
        """Extend the lock. After it is lost, writes with it fail."""
        while True:
            await asyncio.sleep(_KEPT_S)
            with contextlib.suppress(TopicError):
                if not await self._scripts.run("keep_lock", [key], token, LEASE_MS):
                    return
