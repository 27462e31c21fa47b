"""What a Redis has to be that a server stores in, and what it keeps: looked at before anything is written."""

import time
from collections.abc import Mapping
from typing import Any, Self

import msgspec
import redis.asyncio
from redis.exceptions import ReadOnlyError

from headrace.storage.errors import Evicting, TooOld, WrongKind, WrongLayout, unusable
from headrace.storage.layout import LAYOUT_VERSION
from headrace.storage.layout.keys import Keyspace
from headrace.storage.redis.clients import ERRORS, Primary, cluster_of, on_primaries, primaries
from headrace.storage.redis.url import without_password

_OLDEST_REDIS = (7, 0)
_OTHER_MODES = {
    "cluster": "is one of a Redis Cluster: name it with redis+cluster://HOST:PORT,HOST:PORT",
    "sentinel": "is a Sentinel: name it with redis+sentinel://HOST:PORT,HOST:PORT/NAME, with the primary's name there",
}
"""What a server may be that was named as one by itself."""
_SKEW_S = 2.0
"""Clocks that are nearer to each other are taken for the same."""


class Durability(msgspec.Struct, frozen=True):
    """What the server behind the URL keeps when it or its machine dies, and at what cost, as far as it tells."""

    append_only: str = ""
    fsync: str = ""
    save: str = ""
    eviction: str = ""
    maxmemory: str = "0"
    """Bytes; 0: no bound."""
    compression: str = ""
    rewriting: str = ""
    """Per cent by which the append-only file grows until it is rewritten; 0: it is not."""

    @classmethod
    def told(cls, settings: Mapping[Any, Any]) -> Self:
        """As CONFIG GET has told it."""
        told = {text(name): text(value or "") for name, value in settings.items()}
        return cls(
            append_only=told.get("appendonly", ""),
            fsync=told.get("appendfsync", ""),
            save=told.get("save", ""),
            eviction=told.get("maxmemory-policy", ""),
            maxmemory=told.get("maxmemory", "0"),
            compression=told.get("rdbcompression", ""),
            rewriting=told.get("auto-aof-rewrite-percentage", ""),
        )

    @property
    def evicting(self) -> str:
        """Why what was acknowledged would go again, record by record, without anybody's being told; empty: it stays."""
        if not self.eviction.startswith("allkeys-") or self.maxmemory == "0":
            return ""
        return (
            f"this Redis removes keys when its {self.maxmemory} bytes are full (maxmemory-policy "
            f"{self.eviction}): whole partitions would vanish; set maxmemory-policy noeviction"
        )

    def check(self) -> None:
        """Raise Evicting where it is so."""
        if self.evicting:
            raise Evicting(self.evicting)

    def warnings(self) -> list[str]:
        """What an operator should know, a sentence each; empty when all is well or nothing is known."""
        found = []
        if self.append_only == "no" and not self.save:
            found.append("this Redis keeps nothing on disk: everything is lost when it stops (set appendonly yes)")
        elif self.append_only == "no":
            found.append("this Redis writes snapshots only: what came after the last is lost (set appendonly yes)")
        elif self.append_only == "yes" and self.fsync == "everysec":
            found.append(
                "this Redis has appendfsync everysec: a kill -9 may lose acknowledged records of the last second "
                "or two (appendfsync no loses none then; always survives power loss too)"
            )
        if self.eviction not in ("", "noeviction"):
            found.append(
                f"this Redis evicts keys when memory is full ({self.eviction}): set maxmemory-policy noeviction"
            )
        return found

    def better(self) -> dict[str, str]:
        """Settings that would save it work which keeps nothing more, beside an append-only file; decision 0064."""
        if self.append_only != "yes":
            return {}
        found = {}
        if self.save:
            found["save"] = ""
        if self.compression == "yes":
            found["rdbcompression"] = "no"
        if self.rewriting not in ("", "0"):
            found["auto-aof-rewrite-percentage"] = "0"
        return found


async def examine(url: str, admin: redis.asyncio.Redis, keyspace: Keyspace) -> Durability:
    """Whether a server may store in this Redis, which is asked and not changed.

    Args:
        url: by which it was named.
        admin: a client for that URL.
        keyspace: what the server would write.

    Returns:
        What it keeps.

    Raises:
        Unreachable, TooOld, WrongKind, WrongLayout, Evicting.
    """
    try:
        await _check_version(admin)
        await _check_role(admin)
        await on_primaries(admin, "ping")  # whoever cannot write its files says so to this, too
        await _check_scripts(admin)
        found = await durability(admin)
        found.check()
        layout = await admin.get(keyspace.version)
        check_layout(None if layout is None else text(layout))
    except WrongKind as error:
        raise WrongKind(f"the server at {without_password(url)} {error}") from None
    except ERRORS as error:
        raise unusable(error, url) from None
    return found


def text(value: bytes | str) -> str:
    """What redis-py tells, as text."""
    return value.decode() if isinstance(value, bytes) else value


async def _check_version(admin: redis.asyncio.Redis) -> None:
    for info in await on_primaries(admin, "info", "server"):
        # Redis has one name for it, Valkey the other.
        mode = info.get("redis_mode") or info.get("server_mode")
        if cluster_of(admin) is None and mode in _OTHER_MODES:
            raise WrongKind(_OTHER_MODES[mode])
        version = str(info.get("redis_version", ""))
        # Valkey tells the Redis version it is compatible with here, and its own elsewhere.
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if numbers and numbers < _OLDEST_REDIS:
            raise TooOld(f"Redis {version} is too old: Headrace needs Redis 7.0 or later, or Valkey 8 or later")


async def _check_role(admin: redis.asyncio.Redis) -> None:
    """Raise what a replica answers to a write. A cluster's client finds the primaries by itself."""
    if cluster_of(admin) is None and (await admin.info("replication")).get("role") == "slave":
        raise ReadOnlyError("it is a replica")


async def durability(admin: redis.asyncio.Redis) -> Durability:
    """What Redis is set to keep; empty where it does not tell (CONFIG is often closed in the cloud)."""
    try:
        asked = [await durability_of(each) for each in await primaries(admin)]
    except ERRORS:
        return Durability()
    # Of a cluster's primaries, whose settings should be the same, the weakest.
    return max(asked, key=lambda each: (each.evicting, len(each.warnings())), default=Durability())


async def durability_of(server: Primary) -> Durability:
    """What one server is set to keep. Raises as `Primary.ask`, also where it does not tell."""
    return Durability.told(
        await server.ask(
            "config_get", "appendonly", "appendfsync", "save", "maxmemory-policy", "maxmemory", "rdbcompression",
            "auto-aof-rewrite-percentage",
        )
    )  # fmt: skip


async def _check_scripts(admin: redis.asyncio.Redis) -> None:
    """Raise what redis-py raises where scripts may not be run."""
    (sha, *_) = await on_primaries(admin, "execute_command", "SCRIPT LOAD", "return 1")
    await on_primaries(admin, "execute_command", "EVALSHA", text(sha), "0")


def check_layout(found: str | None) -> None:
    """Raise WrongLayout for a keyspace that another version has written; `found` is None where nothing has been."""
    if found is None or found == str(LAYOUT_VERSION):
        return
    older = found.isdecimal() and int(found) < LAYOUT_VERSION
    raise WrongLayout(
        f"the data was written in layout {found}, this Headrace knows {LAYOUT_VERSION}: start "
        f"{'the older' if older else 'a newer'} version, or name another place for the data (--data, --redis)"
    )


async def clock_difference(admin: redis.asyncio.Redis) -> float:
    """Seconds that Redis' clock is ahead of this machine's; 0.0 where they agree, within two and the way there.

    Raises:
        What `redis_clients.ERRORS` names.
    """
    asked = time.time()
    told = [seconds + micros / 1_000_000 for seconds, micros in await on_primaries(admin, "time")]
    answered = time.time()
    ahead = max(told) - answered
    behind = asked - min(told)
    return ahead if ahead > _SKEW_S else -behind if behind > _SKEW_S else 0.0
