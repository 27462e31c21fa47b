"""Authorize principals by ACLs. Pure; the semantics of Kafka's StandardAuthorizer.

A deny overrides all allows. `make test LANE=security` compares this with Kafka's class. A check costs a few look-ups
for any number of ACLs.
"""

from collections.abc import Iterable, Iterator
from ipaddress import IPv6Address, ip_address
from typing import TypeVar

from headrace.security.access.acls import ANYBODY, ANYTHING, Acl, Pattern
from headrace.security.access.required_acls import Operation, ResourceType

_IMPLYING: dict[Operation, frozenset[Operation | None]] = {
    Operation.DESCRIBE: frozenset(
        {None, Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({None, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""Operations that allow this one, too. Denying one denies nothing else."""

_Verdict = tuple[Operation | None, bool]
"""An operation, and whether it is allowed."""
_Asker = tuple[str, str]
"""A principal and the canonical host of an ACL."""
_Said = dict[_Asker, dict[_Verdict, int]]
"""The ACLs of one name, counted, as one host has several spellings."""
_Key = TypeVar("_Key")


def plain_host(host: str) -> str:
    """Return an address in canonical form, IPv4-mapped ones as IPv4, and other text unchanged."""
    if host == ANYTHING:
        return host
    try:
        address = ip_address(host.split("%", 1)[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


class _Names:
    __slots__ = ("_lengths", "any_of_type", "by_prefix", "granted", "lengths", "literal")

    def __init__(self) -> None:
        self.literal: dict[str, _Said] = {}
        self.by_prefix: dict[str, _Said] = {}
        self._lengths: dict[int, int] = {}
        self.lengths: tuple[int, ...] = ()
        """Distinct lengths of prefixes: one look-up each finds all matching prefixes."""
        self.granted: dict[tuple[_Asker, Operation | None], dict[tuple[Pattern, str], int]] = {}
        """Names and prefixes for which an operation is allowed, counted like the ACLs."""
        self.any_of_type: dict[tuple[tuple[_Asker, ...], tuple[_Asker, ...], Operation], bool] = {}
        """Cached results of `Rights.allow_any`, until the next change."""

    def add(self, acl: Acl, asker: _Asker) -> None:
        names = self.by_prefix if acl.pattern is Pattern.PREFIXED else self.literal
        said = names.get(acl.name)
        if said is None:
            said = names[acl.name] = {}
            if acl.pattern is Pattern.PREFIXED:
                _count(self._lengths, len(acl.name))
                self._sort_lengths()
        _count(said.setdefault(asker, {}), (acl.operation, acl.allow))
        if acl.allow:
            _count(self.granted.setdefault((asker, acl.operation), {}), (acl.pattern, acl.name))
        self.any_of_type = {}

    def remove(self, acl: Acl, asker: _Asker) -> None:
        names = self.by_prefix if acl.pattern is Pattern.PREFIXED else self.literal
        said = names[acl.name]
        _uncount(said[asker], (acl.operation, acl.allow))
        if not said[asker]:
            del said[asker]
        if not said:
            del names[acl.name]
            if acl.pattern is Pattern.PREFIXED:
                _uncount(self._lengths, len(acl.name))
                self._sort_lengths()
        if acl.allow:
            granted = self.granted[asker, acl.operation]
            _uncount(granted, (acl.pattern, acl.name))
            if not granted:
                del self.granted[asker, acl.operation]
        self.any_of_type = {}

    def _sort_lengths(self) -> None:
        if len(self._lengths) != len(self.lengths):
            self.lengths = tuple(sorted(self._lengths))

    def about(self, name: str) -> Iterator[_Said]:
        for literal in (name, ANYTHING) if name != ANYTHING else (ANYTHING,):
            said = self.literal.get(literal)
            if said is not None:
                yield said
        yield from self.prefixes(name)

    def prefixes(self, name: str) -> Iterator[_Said]:
        longest = len(name)
        for length in self.lengths:
            if length > longest:
                break
            said = self.by_prefix.get(name[:length])
            if said is not None:
                yield said


def _count(counts: dict[_Key, int], key: _Key) -> None:
    counts[key] = counts.get(key, 0) + 1


def _uncount(counts: dict[_Key, int], key: _Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


_NOTHING = _Names()


class Authorizer:
    """The ACLs of one virtual cluster."""

    def __init__(
        self, acls: Iterable[Acl] = (), super_users: frozenset[str] = frozenset(), *, allow_unless_told: bool = False
    ) -> None:
        """`allow_unless_told` is `allow.everyone.if.no.acl.found`."""
        self.super_users = super_users
        self.allow_unless_told = allow_unless_told
        self._types: dict[ResourceType, _Names] = {}
        self._askers: dict[_Asker, int] = {}
        for acl in {*acls}:
            self.add(acl)

    def add(self, acl: Acl) -> None:
        """Add a new ACL."""
        asker = (acl.principal, plain_host(acl.host))
        self._types.setdefault(acl.type, _Names()).add(acl, asker)
        _count(self._askers, asker)

    def remove(self, acl: Acl) -> None:
        """Remove an existing ACL."""
        asker = (acl.principal, plain_host(acl.host))
        self._types[acl.type].remove(acl, asker)
        _uncount(self._askers, asker)

    def names(self, kind: ResourceType) -> _Names:
        """Return the ACLs of a resource type."""
        return self._types.get(kind, _NOTHING)

    def askers(self, principals: Iterable[str], host: str) -> tuple[_Asker, ...]:
        """Return the principals and hosts of ACLs that match."""
        found = ((principal, where) for principal in principals for where in {host, ANYTHING})
        return tuple(sorted(asker for asker in found if asker in self._askers))

    def of(self, principal: str, host: str, also_denied: str | None = None) -> "Rights":
        """Return the rights of a principal, such as `User:alice`, at a host.

        `also_denied` is another name of the principal, which only denies match.
        """
        return Rights(self, principal, plain_host(host), also_denied)


class Rights:
    """Current rights of one principal at one host."""

    __slots__ = ("_allowed", "_authorizer", "_denied", "_host", "everything")

    def __init__(self, authorizer: Authorizer, principal: str, host: str, also_denied: str | None) -> None:
        """Use `Authorizer.of`."""
        self._authorizer = authorizer
        self._host = host
        self.everything = principal in authorizer.super_users
        """Whether ACLs do not apply."""
        self._allowed = tuple(sorted({principal, ANYBODY}))
        self._denied = tuple(sorted({*self._allowed, *([also_denied] if also_denied else [])}))

    def allow(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether an operation on a resource is allowed."""
        if self.everything:
            return True
        implying = _IMPLYING.get(operation) or (operation, None)
        hosts = (self._host, ANYTHING)
        allowed = found = False
        for said in self._authorizer.names(kind).about(name):
            found = True
            for principal in self._denied:
                for host in hosts:
                    verdicts = said.get((principal, host))
                    if verdicts is None:
                        continue
                    if (operation, False) in verdicts or (None, False) in verdicts:
                        return False
                    if not allowed and principal in self._allowed:
                        allowed = any((granted, True) in verdicts for granted in implying)
        return allowed or (not found and self._authorizer.allow_unless_told)

    def allow_any(self, operation: Operation, kind: ResourceType) -> bool:
        """Return whether an operation is allowed on any resource of a type (Kafka's `authorizeByResourceType`).

        As in Kafka, no operation implies another one here.
        """
        # A name without an ACL.
        if self.everything or self.allow(operation, kind, _UNHEARD_OF):
            return True
        names = self._authorizer.names(kind)
        # Principals and hosts with the same ACLs share a result.
        allowed = self._authorizer.askers(self._allowed, self._host)
        denied = self._authorizer.askers(self._denied, self._host)
        key = (allowed, denied, operation)
        known = names.any_of_type.get(key)
        if known is None:
            if len(names.any_of_type) >= _MOST_REMEMBERED:
                names.any_of_type.clear()
            known = names.any_of_type[key] = _any(names, allowed, denied, operation)
        return known


def _any(names: _Names, allowed: tuple[_Asker, ...], denied: tuple[_Asker, ...], operation: Operation) -> bool:
    denials: tuple[_Verdict, _Verdict] = ((operation, False), (None, False))

    def is_denied(said: _Said | None) -> bool:
        return said is not None and any(
            denial in verdicts for asker in denied if (verdicts := said.get(asker)) for denial in denials
        )

    if is_denied(names.literal.get(ANYTHING)):
        return False
    for asker in allowed:
        for granted in (operation, None):
            for pattern, name in names.granted.get((asker, granted), ()):
                literal = pattern is Pattern.LITERAL
                if literal and name == ANYTHING:
                    return True
                if literal and is_denied(names.literal.get(name)):
                    continue
                if not any(is_denied(said) for said in names.prefixes(name)):
                    return True
    return False


_MOST_REMEMBERED = 4_096
_UNHEARD_OF = "hardcode"
"""Kafka uses the same name."""
