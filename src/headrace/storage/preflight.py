"""Checks of a Redis before the server writes to it: version, role, scripts, layout and durability."""

import time
from collections.abc import Mapping
from typing import Any, Self

import msgspec
import redis.asyncio
from redis.exceptions import ReadOnlyError

from headrace.storage.errors import Evicting, TooOld, WrongKind, WrongLayout, unusable
from headrace.storage.layout import LAYOUT_VERSION, TRANSACTIONS_LAYOUT_VERSION
from headrace.storage.layout.keys import Keyspace
from headrace.storage.redis.clients import ERRORS, Primary, cluster_of, on_primaries, primaries
from headrace.storage.redis.url import without_password

_OLDEST_REDIS = (7, 0)
_OTHER_MODES = {
    "cluster": "is one of a Redis Cluster: name it with redis+cluster://HOST:PORT,HOST:PORT",
    "sentinel": "is a Sentinel: name it with redis+sentinel://HOST:PORT,HOST:PORT/NAME, with the primary's name there",
}
"""Modes of a server that needs another kind of URL."""
_SKEW_S = 2.0
"""Clock differences up to this many seconds are ignored."""


class Durability(msgspec.Struct, frozen=True):
    """Durability settings of a Redis, as far as it reports them."""

    append_only: str = ""
    fsync: str = ""
    save: str = ""
    eviction: str = ""
    maxmemory: str = "0"
    """Bytes; 0: no limit."""
    compression: str = ""
    rewriting: str = ""
    """Growth of the append-only file in percent that starts a rewrite; 0: no rewrites."""

    @classmethod
    def told(cls, settings: Mapping[Any, Any]) -> Self:
        """Parse the reply of CONFIG GET."""
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
        """Return why Redis would silently evict acknowledged records, or an empty text."""
        if not self.eviction.startswith("allkeys-") or self.maxmemory == "0":
            return ""
        return (
            f"this Redis removes keys when its {self.maxmemory} bytes are full (maxmemory-policy "
            f"{self.eviction}): whole partitions would vanish; set maxmemory-policy noeviction"
        )

    def check(self) -> None:
        """Raise Evicting if Redis would evict records."""
        if self.evicting:
            raise Evicting(self.evicting)

    def warnings(self) -> list[str]:
        """Return warnings for the operator."""
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
        """Return settings that save work without a loss of durability (decision 0064)."""
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
    """Check whether a server may store in this Redis, and return its durability.

    Raises:
        Unreachable, TooOld, WrongKind, WrongLayout, Evicting.
    """
    try:
        await _check_version(admin)
        await _check_role(admin)
        await on_primaries(admin, "ping")  # also fails if Redis cannot write its files
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
    """Return a value of redis-py as text."""
    return value.decode() if isinstance(value, bytes) else value


async def _check_version(admin: redis.asyncio.Redis) -> None:
    for info in await on_primaries(admin, "info", "server"):
        mode = info.get("redis_mode") or info.get("server_mode")
        if cluster_of(admin) is None and mode in _OTHER_MODES:
            raise WrongKind(_OTHER_MODES[mode])
        version = str(info.get("redis_version", ""))
        # Valkey reports the compatible Redis version here.
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if numbers and numbers < _OLDEST_REDIS:
            raise TooOld(f"Redis {version} is too old: Headrace needs Redis 7.0 or later, or Valkey 8 or later")


async def _check_role(admin: redis.asyncio.Redis) -> None:
    """A cluster's client finds the primaries itself."""
    if cluster_of(admin) is None and (await admin.info("replication")).get("role") == "slave":
        raise ReadOnlyError("it is a replica")


async def durability(admin: redis.asyncio.Redis) -> Durability:
    """Return the durability settings, empty if Redis denies CONFIG, as cloud services often do."""
    try:
        asked = [await durability_of(each) for each in await primaries(admin)]
    except ERRORS:
        return Durability()
    # The weakest of the primaries.
    return max(asked, key=lambda each: (each.evicting, len(each.warnings())), default=Durability())


async def durability_of(server: Primary) -> Durability:
    """Return one server's durability settings. Raises as `Primary.ask`."""
    return Durability.told(
        await server.ask(
            "config_get", "appendonly", "appendfsync", "save", "maxmemory-policy", "maxmemory", "rdbcompression",
            "auto-aof-rewrite-percentage",
        )
    )  # fmt: skip


async def _check_scripts(admin: redis.asyncio.Redis) -> None:
    (sha, *_) = await on_primaries(admin, "execute_command", "SCRIPT LOAD", "return 1")
    await on_primaries(admin, "execute_command", "EVALSHA", text(sha), "0")


def check_layout(found: str | None) -> None:
    """Raise WrongLayout if another version has written the keyspace."""
    if found is None or found in {str(LAYOUT_VERSION), str(TRANSACTIONS_LAYOUT_VERSION)}:
        return
    older = found.isdecimal() and int(found) < LAYOUT_VERSION
    known = f"{LAYOUT_VERSION} and {TRANSACTIONS_LAYOUT_VERSION}"
    raise WrongLayout(
        f"the data was written in layout {found}, this Headrace knows {known}: start "
        f"{'the older' if older else 'a newer'} version, or name another place for the data (--data, --redis)"
    )


async def clock_difference(admin: redis.asyncio.Redis) -> float:
    """Return how many seconds Redis's clock is ahead, 0.0 within the round trip and 2 s.

    Raises:
        `redis.clients.ERRORS`.
    """
    asked = time.time()
    told = [seconds + micros / 1_000_000 for seconds, micros in await on_primaries(admin, "time")]
    answered = time.time()
    ahead = max(told) - answered
    behind = asked - min(told)
    return ahead if ahead > _SKEW_S else -behind if behind > _SKEW_S else 0.0
