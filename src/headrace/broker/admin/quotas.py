"""Quotas of all virtual clusters: stored values, limits of clients, and usage."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, Protocol, TypeVar

import msgspec

from headrace.aio.tasks import to_the_end
from headrace.broker.config.keys import UNLIMITED_RATE
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.documents import Changing, readable
from headrace.broker.ports import DocumentStorage
from headrace.broker.runtime.clock import Clock
from headrace.security.quotas.entities import OF_ADDRESSES, OF_CLIENTS, Entity, Filter, Held, Key, held, held_by_address
from headrace.security.quotas.rates import Rate, TokenBucket, Windows
from headrace.text.addresses import holder, plain

# Meters by user, with limits on their number.
#
# A client chooses its id, so new ids must not evict the usage of others. A meter in use is never dropped: above
# `MOST_OF_ONE`, one user's new meters are shared, and above `MOST`, all new ones.
MOST = 10_000
"""Maximum meters of one virtual cluster."""
MOST_OF_ONE = 1_000
"""Maximum meters of one user, or without login, of one address."""
_SWEEP_MS = 1_000
"""Minimum interval of sweeps for idle meters."""

Maker = tuple[str, str]
"""User name, and address of a client without login."""
_EVERYBODY: Maker = ("", "")


class _Forgettable(Protocol):
    def is_idle(self, ticks_ms: int) -> bool:
        """Whether it can be dropped."""


M = TypeVar("M", bound=_Forgettable)
_Place = tuple[Key, tuple[str | None, str | None] | Maker, float | None]


class Meters(Generic[M]):
    """Meters of one kind."""

    def __init__(
        self, most: int = MOST, most_of_one: int = MOST_OF_ONE, forgot: Callable[[], None] = lambda: None
    ) -> None:
        """`forgot` is called when meters were dropped, which must not be used any more."""
        self._most = most
        self._most_of_one = most_of_one
        self._forgot = forgot
        self._meters: dict[_Place, tuple[M, Maker]] = {}
        self._made: Counter[Maker] = Counter()
        self._shared: dict[_Place, M] = {}
        self._swept_ms: int | None = None

    def found(self, key: Key, holds: Held, maker: Maker, make: Callable[[], M], ticks_ms: int) -> M:
        """Return the meter of clients that share a limit, made if missing."""
        place = (key, holds.shared, None)
        known = self._meters.get(place)
        if known is not None:
            return known[0]
        if len(self._meters) >= self._most or self._made[maker] >= self._most_of_one:
            self._sweep(ticks_ms)
        if self._made[maker] >= self._most_of_one:
            return self._of_many(key, holds, maker, make)
        if len(self._meters) >= self._most:
            return self._of_many(key, holds, _EVERYBODY, make)
        meter = make()
        self._meters[place] = meter, maker
        self._made[maker] += 1
        return meter

    def _of_many(self, key: Key, holds: Held, maker: Maker, make: Callable[[], M]) -> M:
        place = (key, maker, holds.limit)
        meter = self._shared.get(place)
        if meter is None:
            meter = self._shared[place] = make()
        return meter

    def _sweep(self, ticks_ms: int) -> None:
        if self._swept_ms is not None and ticks_ms - self._swept_ms < _SWEEP_MS:
            return
        self._swept_ms = ticks_ms
        self._meters = {place: known for place, known in self._meters.items() if not known[0].is_idle(ticks_ms)}
        self._shared = {place: meter for place, meter in self._shared.items() if not meter.is_idle(ticks_ms)}
        self._made = Counter(maker for _, maker in self._meters.values())
        self._forgot()


KIND = "quotas"
"""Kind of the documents: `<cluster>/<entity>` -> its quotas by key."""
MOST_ENTITIES = 10_000
"""Maximum of one virtual cluster."""
LONGEST_NAME = 256
"""Characters of a user or client id that identify it."""
_MOST_KNOWN = 4_096
"""Clients with cached limits."""
_LONGEST_WAIT_MS = 10_000
"""Maximum wait above `max.connection.creation.rate`: as long as a handshake may take."""

_parts = msgspec.json.Decoder(tuple[tuple[str, str | None], ...])
_values = msgspec.json.Decoder(dict[Key, float])
_encode = msgspec.json.Encoder(order="deterministic").encode

Changes = Mapping[Entity, Mapping[Key, float | None]]
"""None removes a quota."""


class TooManyQuotas(Exception):
    """A virtual cluster would exceed `MOST_ENTITIES`."""


class Throttled:
    """Number and total time of throttled requests of one kind of quota."""

    __slots__ = ("count", "ms")

    def __init__(self) -> None:
        self.count = 0
        self.ms = 0


class Meter:
    """Usage of clients that share a limit, in bytes, percent of a second, or connections."""

    __slots__ = ("_rate", "_throttled", "_used_ms", "_windows", "limit")

    def __init__(self, limit: float, windows: Windows, throttled: Throttled, ticks_ms: int) -> None:
        self.limit = limit
        self._windows = windows
        self._rate = Rate(windows)
        self._throttled = throttled
        self._used_ms = ticks_ms

    @property
    def window_ms(self) -> int:
        """Length of one window."""
        return self._windows.length_ms

    @property
    def most(self) -> float:
        """Amount that idle clients may use at once."""
        return self.limit * self._windows.most

    def add(self, amount: float, ticks_ms: int) -> None:
        """Count usage without throttling."""
        self._used_ms = ticks_ms
        self._rate.add(amount, ticks_ms)

    def charge(self, amount: float, ticks_ms: int, most_ms: int | None = None) -> int:
        """Count usage. Return the throttle time in ms, at most `most_ms`."""
        self.add(amount, ticks_ms)
        wait_ms = self._rate.wait_ms(self.limit, ticks_ms)
        if wait_ms and most_ms is not None:
            wait_ms = min(wait_ms, most_ms)
        if wait_ms:
            self._throttled.count += 1
            self._throttled.ms += wait_ms
        return wait_ms

    def charge_unless_late(self, amount: float, ticks_ms: int, most_ms: int | None = None) -> tuple[int, bool]:
        """As `charge`, but a throttled operation is neither done nor counted. Also return whether it is done.

        An amount that could never fit is done by an idle client, which then waits. In Kafka, it never is.
        """
        too_large = amount > self.most and not self._rate.measured(ticks_ms)[0]
        wait_ms = self.charge(amount, ticks_ms, most_ms)
        done = not wait_ms or too_large
        if not done:
            self._rate.add(-amount, ticks_ms)
        return wait_ms, done

    def is_idle(self, ticks_ms: int) -> bool:
        """Whether all windows that have usage are over."""
        return ticks_ms - self._used_ms > (self._windows.count + 1) * self._windows.length_ms


class Mutations:
    """Quota for creating and deleting partitions."""

    __slots__ = ("_bucket", "_throttled", "_windows")

    def __init__(self, limit: float, windows: Windows, throttled: Throttled, ticks_ms: int) -> None:
        self._windows = windows
        self._throttled = throttled
        self._bucket = TokenBucket(limit, limit * windows.count * windows.length_ms / 1000, ticks_ms)

    @property
    def limit(self) -> float:
        """Limit per second."""
        return self._bucket.rate

    @limit.setter
    def limit(self, limit: float) -> None:
        self._bucket.rate = limit
        self._bucket.burst = limit * self._windows.count * self._windows.length_ms / 1000

    def charge(self, partitions: int, ticks_ms: int, *, strict: bool) -> tuple[int, bool]:
        """Count partitions. Return the throttle time in ms, and whether the change may proceed.

        With `strict`, a throttled change neither proceeds nor counts.
        """
        late_ms = self._bucket.wait_ms(ticks_ms) if strict else 0
        if not late_ms:
            self._bucket.take(partitions, ticks_ms)
        wait_ms = late_ms if strict else self._bucket.wait_ms(ticks_ms)
        if wait_ms:
            self._throttled.count += 1
            self._throttled.ms += wait_ms
        return wait_ms, not late_ms

    def is_idle(self, ticks_ms: int) -> bool:
        """Whether it can be dropped."""
        return self._bucket.is_idle(ticks_ms)


class ClientLimits:
    """Limits of one client. None: unlimited."""

    __slots__ = ("fetch", "mutations", "produce", "requests")

    def __init__(
        self, produce: Meter | None, fetch: Meter | None, requests: Meter | None, mutations: Mutations | None
    ) -> None:
        self.produce = produce
        self.fetch = fetch
        self.requests = requests
        self.mutations = mutations


class ClusterQuotas:
    """Quotas of one virtual cluster, from `Quotas.of`."""

    def __init__(self, quotas: "Quotas", cluster: str) -> None:
        self._quotas = quotas
        self._cluster = cluster
        self.limiting = False
        """Whether clients have any quota."""
        self.limiting_addresses = False
        self._entities: dict[Entity, dict[Key, float]] = {}
        self._known: dict[tuple[str, str, str], ClientLimits | None] = {}
        self._meters = Meters[Meter](forgot=self._look_again)
        # Separate, so that addresses do not use up the meters of clients with login.
        self._addresses = Meters[Meter]()
        self._mutations = Meters[Mutations](forgot=self._look_again)

    def limits(self, user: str, client_id: str, host: str = "") -> ClientLimits | None:
        """Return a client's limits, if any. `host` is for a client without login."""
        key = (user[:LONGEST_NAME], client_id[:LONGEST_NAME], host)
        try:
            return self._known[key]
        except KeyError:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = self._find(*key)
            return found

    def _look_again(self) -> None:
        self._known = {}

    def _find(self, user: str, client_id: str, host: str) -> ClientLimits | None:
        maker = (user, holder(host))
        produce, fetch, requests = (
            self._meter(self._meters, key, held(self._entities, key, user, client_id), maker)
            for key in (Key.PRODUCE, Key.FETCH, Key.REQUESTS)
        )
        mutations = self._mutated(held(self._entities, Key.MUTATIONS, user, client_id), maker)
        if produce is None and fetch is None and requests is None and mutations is None:
            return None
        return ClientLimits(produce, fetch, requests, mutations)

    def _meter(self, meters: Meters[Meter], key: Key, holds: Held | None, maker: Maker) -> Meter | None:
        if holds is None:
            return None
        ticks_ms = self._quotas.clock.ticks_ms()
        make = partial(Meter, holds.limit, self._quotas.windows, self._quotas.throttled[key], ticks_ms)
        meter = meters.found(key, holds, maker, make, ticks_ms)
        meter.limit = holds.limit
        return meter

    def _mutated(self, holds: Held | None, maker: Maker) -> Mutations | None:
        if holds is None:
            return None
        ticks_ms, throttled = self._quotas.clock.ticks_ms(), self._quotas.throttled[Key.MUTATIONS]
        make = partial(Mutations, holds.limit, self._quotas.controller_windows, throttled, ticks_ms)
        mutations = self._mutations.found(Key.MUTATIONS, holds, maker, make, ticks_ms)
        mutations.limit = holds.limit
        return mutations

    def connecting(self, host: str) -> int:
        """Count a connection. Return the ms to delay its rejection. 0: it is accepted."""
        if not self.limiting_addresses:
            return 0
        found = held_by_address(self._entities, plain(host))
        # Addresses without quota share the default, per network.
        whose = holder(host) if found is None or found.address is None else found.address
        holds = None if found is None else Held(found.limit, (whose, None))
        meter = self._meter(self._addresses, Key.CONNECTIONS, holds, ("", whose))
        if meter is None:
            return 0
        wait_ms, let_in = meter.charge_unless_late(1, self._quotas.clock.ticks_ms(), meter.window_ms)
        return 0 if let_in else wait_ms

    def arriving(self) -> int | None:
        """Count a connection to any cluster. Return its wait in ms. None: it exceeds the maximum."""
        return self._quotas.arriving()

    def found(self, wanted: Filter) -> dict[Entity, dict[Key, float]]:
        """Return the matching quotas by entity."""
        ordered = sorted(self._entities.items(), key=_in_order)
        return {entity: dict(keys) for entity, keys in ordered if wanted.means(entity)}

    async def alter(self, changes: Changes) -> None:
        """Store and apply changed quotas.

        Raises:
            TooManyQuotas, LockLost, and as `DocumentStorage.save`.
        """
        await to_the_end(self._quotas.save(self, self._cluster, changes))

    def altered(self, changes: Changes) -> dict[Entity, dict[Key, float]]:
        """Return the new quotas of changed entities. Raises TooManyQuotas."""
        after: dict[Entity, dict[Key, float]] = {}
        for entity, values in changes.items():
            merged = {**self._entities.get(entity, {}), **values}
            after[entity] = {key: value for key, value in merged.items() if value is not None}
        many = len(self._entities.keys() | {entity for entity, keys in after.items() if keys})
        if many > MOST_ENTITIES and many > len(self._entities):
            raise TooManyQuotas(f"a cluster has quotas for at most {MOST_ENTITIES} entities")
        return after

    def take(self, entities: dict[Entity, dict[Key, float]]) -> None:
        """Apply quotas. Usage remains."""
        self._entities = {entity: keys for entity, keys in entities.items() if keys}
        self._known = {}
        given = frozenset(key for keys in self._entities.values() for key in keys)
        self.limiting = bool(given & OF_CLIENTS)
        self.limiting_addresses = bool(given & OF_ADDRESSES)
        self._quotas.look()

    def take_some(self, entities: Mapping[Entity, dict[Key, float]]) -> None:
        """Replace the quotas of these entities."""
        self.take({**self._entities, **entities})


def _in_order(one: tuple[Entity, object]) -> list[tuple[str, bool, str]]:
    return [(kind, name is not None, name or "") for kind, name in one[0].parts]


class Quotas:
    """Quotas of all virtual clusters of a server. Each server counts usage alone."""

    def __init__(self, documents: DocumentStorage, settings: BrokerSettings, clock: Clock) -> None:
        self.clock = clock
        self.windows = Windows(settings.quota_window_num, settings.quota_window_size_seconds)
        self.controller_windows = Windows(
            settings.controller_quota_window_num, settings.controller_quota_window_size_seconds
        )
        self.throttled = {key: Throttled() for key in Key}
        rate = settings.max_connection_creation_rate
        self._arrivals = (
            None
            if rate >= UNLIMITED_RATE
            else Meter(rate, self.windows, self.throttled[Key.CONNECTIONS], clock.ticks_ms())
        )
        self._documents = documents
        self._changing = Changing(documents, KIND, frozenset({KIND}), self.reload)
        self._taking = asyncio.Lock()
        self._clusters: dict[str, ClusterQuotas] = {}
        self.limiting = False
        """Whether any virtual cluster has quotas for clients."""

    def look(self) -> None:
        """Update after a change of quotas."""
        self.limiting = any(each.limiting for each in self._clusters.values())

    def of(self, cluster: str) -> ClusterQuotas:
        """Return the quotas of a virtual cluster. The object stays the same."""
        found = self._clusters.get(cluster)
        if found is None:
            found = self._clusters[cluster] = ClusterQuotas(self, cluster)
        return found

    def arriving(self) -> int | None:
        """See `ClusterQuotas.arriving`. Waiting connections count, so they are accepted one after the other."""
        if self._arrivals is None:
            return 0
        ticks_ms = self.clock.ticks_ms()
        wait_ms = self._arrivals.charge(1, ticks_ms)
        if wait_ms > _LONGEST_WAIT_MS:
            self._arrivals.add(-1, ticks_ms)
            return None
        return wait_ms

    async def load(self) -> None:
        """Load stored quotas. Raises StorageUnavailable."""
        async with self._taking:
            found: dict[str, dict[Entity, dict[Key, float]]] = {name: {} for name in self._clusters}
            for cluster, entity, values in (await readable(self._documents, KIND, _quota)).values():
                found.setdefault(cluster, {})[entity] = values
            for cluster, entities in found.items():
                self.of(cluster).take(entities)

    async def reload(self, kinds: frozenset[str]) -> None:
        """See `AclAuthorizer.reload`."""
        if not kinds or KIND in kinds:
            await self.load()

    async def save(self, of: ClusterQuotas, cluster: str, changes: Changes) -> None:
        """See `ClusterQuotas.alter`."""
        async with self._changing.alone(), self._taking:
            after = of.altered(changes)
            await self._changing.save(
                {(KIND, _place(cluster, entity)): _encode(keys) if keys else None for entity, keys in after.items()}
            )
            of.take_some(after)

    async def forget(self, cluster: str) -> None:
        """Delete the quotas of a virtual cluster. Raises as `DocumentStorage.save`."""
        async with self._changing.alone(), self._taking:
            stored = [name for name in await self._documents.load(KIND) if name.startswith(f"{cluster}/")]
            await self._changing.save({(KIND, name): None for name in stored})
            self._clusters.pop(cluster, None)
            self.look()


def _quota(name: str, text: bytes) -> tuple[str, Entity, dict[Key, float]]:
    cluster, _, entity = name.partition("/")
    return cluster, Entity(_parts.decode(entity)), _values.decode(text)


def _place(cluster: str, entity: Entity) -> str:
    return f"{cluster}/{_encode(entity.parts).decode()}"
