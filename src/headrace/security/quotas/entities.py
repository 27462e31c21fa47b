"""Quota entities and values. The rules are Kafka's (KIP-13, 124, 257, 546, 599, 612).

An entity is a user, a client id, both, or an address. The name None is the default for others.
"""

import ipaddress
import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

USER, CLIENT_ID, IP = TYPES = ("user", "client-id", "ip")
"""Types of entities, with Kafka's names."""


class Key(StrEnum):
    """Quota types."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUESTS = "request_percentage"
    MUTATIONS = "controller_mutation_rate"
    CONNECTIONS = "connection_creation_rate"


_INT, _LONG = 2**31 - 1, 2**63 - 1
_MOST = {Key.PRODUCE: _LONG, Key.FETCH: _LONG, Key.CONNECTIONS: _INT}
"""Maximum of quotas that are whole numbers."""
OF_ADDRESSES = frozenset({Key.CONNECTIONS})
OF_CLIENTS = frozenset(Key) - OF_ADDRESSES


class InvalidQuota(ValueError):
    """An invalid quota. The message is Kafka's where it has one."""


class Entity(msgspec.Struct, frozen=True, order=True):
    """The clients that share a quota definition."""

    parts: tuple[tuple[str, str | None], ...]
    """(type, name) in the order of `TYPES`; name None: the default."""

    @classmethod
    def of(cls, parts: Iterable[tuple[str, str | None]]) -> "Entity":
        """Create an entity. Raises InvalidQuota."""
        found: dict[str, str | None] = {}
        for kind, name in parts:
            if kind in found:
                raise InvalidQuota(f"Invalid client quota entity, duplicate entity entry {kind}")
            if kind not in TYPES:
                raise InvalidQuota(f"Unhandled client quota entity type: {kind}")
            if name is not None and not name:
                raise InvalidQuota(f"Empty {kind} not supported")
            found[kind] = name
        if not found:
            raise InvalidQuota("Invalid empty client quota entity")
        if IP in found:
            if len(found) > 1:
                raise InvalidQuota(
                    "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
                )
            found[IP] = _address(found[IP])
        return cls(tuple((kind, found[kind]) for kind in TYPES if kind in found))

    @property
    def names(self) -> dict[str, str | None]:
        """Type -> name."""
        return dict(self.parts)

    @property
    def keys(self) -> frozenset[Key]:
        """Quota types of the entity."""
        return OF_ADDRESSES if self.parts[0][0] == IP else OF_CLIENTS

    def __str__(self) -> str:
        return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in self.parts)


def _address(name: str | None) -> str | None:
    if name is None:
        return None
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        # Kafka also resolves host names, which blocks its server.
        raise InvalidQuota(f"{name} is not a valid IP") from None


def checked(entity: Entity, key: str, value: float) -> Key:
    """Validate a quota and return its key. Raises InvalidQuota."""
    if key not in {each.value for each in entity.keys}:
        raise InvalidQuota(f"Invalid configuration key {key}")
    if not value > 0 or math.isinf(value):
        raise InvalidQuota(f"Quota {key} must be greater than 0")
    most = _MOST.get(found := Key(key))
    if most is not None:
        if value > most:
            raise InvalidQuota(f"Proposed value for {key} is too large for {'an INT' if most == _INT else 'a LONG'}.")
        if value < 1 or abs(value % 1.0) > 1e-6:
            raise InvalidQuota(f"{key} cannot be a fractional value.")
    return found


Quotas = Mapping[Entity, Mapping[Key, float]]


class Held(msgspec.Struct, frozen=True):
    """The limit of a client, and the names that share it."""

    limit: float
    shared: tuple[str | None, str | None]
    """User and client id; None: shared by all names."""


def held(quotas: Quotas, key: Key, user: str, client_id: str) -> Held | None:
    """Return the most specific limit of a client, or None. A default applies to each name separately."""
    for of_user, of_client, shared in (
        ((user,), (client_id,), (user, client_id)),
        ((user,), (None,), (user, client_id)),
        ((user,), (), (user, None)),
        ((None,), (client_id,), (user, client_id)),
        ((None,), (None,), (user, client_id)),
        ((None,), (), (user, None)),
        ((), (client_id,), (None, client_id)),
        ((), (None,), (None, client_id)),
    ):
        parts = (*((USER, name) for name in of_user), *((CLIENT_ID, name) for name in of_client))
        limit = quotas.get(Entity(parts), {}).get(key)
        if limit is not None:
            return Held(limit, shared)
    return None


class HeldByAddress(NamedTuple):
    """Connections per second of an address."""

    limit: float
    address: str | None
    """The address with its own limit; None: the default."""


def held_by_address(quotas: Quotas, address: str) -> HeldByAddress | None:
    """Return the limit of an address, or None."""
    for name in (address, None):
        limit = quotas.get(Entity(((IP, name),)), {}).get(Key.CONNECTIONS)
        if limit is not None:
            return HeldByAddress(limit, name)
    return None


class Filter(msgspec.Struct, frozen=True):
    """Selects entities (DescribeClientQuotas)."""

    exact: Mapping[str, str | None]
    """Type -> name to match."""
    any_of: frozenset[str]
    """Types that must be present, with any name."""
    strict: bool
    """Whether other types must be absent."""

    def means(self, entity: Entity) -> bool:
        """Return whether an entity matches."""
        names = entity.names
        if self.strict and len(names) != len(self.exact) + len(self.any_of):
            return False
        return all(kind in names and names[kind] == name for kind, name in self.exact.items()) and all(
            kind in names for kind in self.any_of
        )
