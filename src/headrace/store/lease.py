"""One server per keyspace: a lease in Redis that its owner renews and that expires when the owner dies.

The lease keeps a second server out in time and says who is there. What keeps the log right is the epoch, which is
raised with every owner and checked by every script that writes: whoever lost the lease without knowing cannot write.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import redis.asyncio
import structlog
from redis.exceptions import RedisError

from headrace.keyspace.scripts import script
from headrace.store.errors import StoreError
from headrace.store.tasks import end

TTL_MS = 5_000
_RENEWALS_PER_TTL = 3
_LOOKS_PER_TTL = 20

_log = structlog.get_logger("headrace.store")


class KeyspaceTaken(StoreError):
    """Another server owns the keyspace and is alive."""


class _Holder:
    """Who has the lease, as `lease_take` answers it."""

    def __init__(self, answer: Sequence[str]) -> None:
        self.token, self.owner, since_ms, self.renewals, remaining_ms = answer
        self.since = datetime.fromtimestamp(int(since_ms) / 1000, UTC).isoformat(" ", "seconds")
        self.remaining_ms = int(remaining_ms)


class Lease:
    """The right to write to a keyspace, from `acquire` to `release`, or until `on_lost` is called."""

    def __init__(
        self,
        client: "redis.asyncio.Redis",
        key: str,
        epoch_key: str,
        owner: str,
        *,
        ttl_ms: int = TTL_MS,
        on_lost: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            client: any redis-py client; it stays the caller's to close.
            key: hash that says who owns the keyspace; expires.
            epoch_key: counter of owners, in the same slot as `key`; never expires.
            owner: this server, for people: its pid and host.
            ttl_ms: how long the lease lasts without being renewed.
            on_lost: called once, with one line that says why, when the lease is lost. The epoch is over then.
            clock: seconds, from anywhere, never going back.
        """
        self.on_lost = on_lost
        self.epoch = 0
        """Fencing epoch, 1 for the first owner of the keyspace; 0 before `acquire`."""
        self._client = client
        self._keys = [key, epoch_key]
        self._owner = owner
        self._token = uuid.uuid4().hex
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._renewing: asyncio.Task[None] | None = None

    async def acquire(self, wait: Callable[[str], None]) -> int:
        """Take the lease and keep it renewed from now on.

        Args:
            wait: called with one line when another server has the lease and it is not known yet whether that lives.

        Returns:
            The fencing epoch.

        Raises:
            KeyspaceTaken: another server renewed it meanwhile, or took it first.
            RedisError: Redis did not answer.
        """
        first: _Holder | None = None
        while True:
            asked = self._clock()
            outcome, *rest = await self._run("lease_take", self._keys, self._token, self._owner, self._ttl_ms)
            if outcome == "taken":
                self.epoch = int(rest[0])
                renewing = self._renew_until_lost(asked + self._ttl_ms / 1000)
                self._renewing = asyncio.create_task(renewing, name="lease renewals")
                return self.epoch
            holder = _Holder(rest)
            if first is None:
                first = holder
                wait(
                    f"this keyspace belongs to the server {holder.owner} since {holder.since}; "
                    f"waiting up to {holder.remaining_ms / 1000:.1f} s to see whether that one is alive"
                )
            elif (holder.token, holder.renewals) != (first.token, first.renewals):
                raise KeyspaceTaken(
                    f"another server owns this keyspace: {holder.owner}, since {holder.since}; "
                    "stop that one, or give this one another Redis with --redis"
                )
            await asyncio.sleep(min(self._ttl_ms / _LOOKS_PER_TTL, holder.remaining_ms + 1) / 1000)

    async def release(self) -> None:
        """Renew no more and let others have it, if it is still ours; it expires anyway when Redis does not answer."""
        if self._renewing is None:
            return
        await end(self._renewing)
        self._renewing = None
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(self._ttl_ms / 1000):
                await self._run("lease_release", self._keys[:1], self._token)

    async def _renew_until_lost(self, expiry_s: float) -> None:
        """Renew three times per time to live; `expiry_s` is when the lease ends, on our clock and rather early."""
        pause_s = self._ttl_ms / 1000 / _RENEWALS_PER_TTL
        delay_s = pause_s
        while True:
            await asyncio.sleep(max(0.0, min(delay_s, expiry_s - self._clock())))
            asked = self._clock()
            try:
                async with asyncio.timeout(max(pause_s, expiry_s - asked)):
                    outcome, *rest = await self._renew()
            except (RedisError, OSError, TimeoutError) as error:
                # Even past its end: if another server took over meanwhile, its epoch says so with the next answer, and
                # until then the scripts refuse whatever this one still writes.
                expiry_s = max(expiry_s, self._clock() + pause_s)
                delay_s = pause_s / _RENEWALS_PER_TTL
                _log.warning("could not renew the lease on the keyspace", reason=str(error) or type(error).__name__)
            else:
                if outcome != "kept":
                    self._lose(_why_lost(self.epoch, *rest))
                    return
                expiry_s, delay_s = asked + self._ttl_ms / 1000, pause_s

    async def _renew(self) -> list[str]:
        return await self._run("lease_renew", self._keys, self._token, self._owner, self.epoch, self._ttl_ms)

    async def _run(self, name: str, keys: Sequence[str], *arguments: str | int) -> list[str]:
        return await _run(self._client, name, keys, *arguments)

    def _lose(self, reason: str) -> None:
        if self.on_lost is not None:
            self.on_lost(reason)
        _log.error("lost the lease on the keyspace", reason=reason)


async def bump_epoch(client: "redis.asyncio.Redis", epoch_key: str) -> int:
    """Begin a new epoch where a lock keeps other servers out already; returns it, 1 at first. Raises RedisError."""
    return int((await _run(client, "lease_epoch", [epoch_key]))[0])


async def _run(client: "redis.asyncio.Redis", name: str, keys: Sequence[str], *arguments: str | int) -> list[str]:
    answer = await client.register_script(script(name).text)(keys=list(keys), args=list(arguments))
    values = answer if isinstance(answer, list) else [answer]
    return [value.decode() if isinstance(value, bytes) else str(value) for value in values]


def _why_lost(epoch: int, present: str, owner: str) -> str:
    if not present:
        return f"the keyspace was emptied under this server (epoch {epoch})"
    by = f" by the server {owner}" if owner else ""
    return f"another server took this keyspace over{by}: epoch {epoch} is over, now {present}"
