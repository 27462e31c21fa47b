"""Whether somebody may do something, by access rules. Pure; the semantics of Kafka's StandardAuthorizer.

A rule that denies goes over every rule that allows. Where no rule is about a resource, nobody but super users may do
anything, unless `allow.everyone.if.no.acl.found`. `make test-security` compares this with Kafka's own class.
"""

from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address

from headrace.security.access.acls import ANYBODY, ANYTHING, Acl, Pattern
from headrace.security.access.required_acls import Operation, ResourceType

_IMPLYING: dict[Operation, frozenset[Operation | None]] = {
    Operation.DESCRIBE: frozenset(
        {None, Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({None, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""Whoever is allowed one of these may do that, too. Denying one of them denies nothing else."""

Rules = frozenset[tuple[Operation | None, bool]]
"""What is said of one name: operations, and whether they are allowed."""
_NONE: Rules = frozenset()


def plain_host(host: str) -> str:
    """An address in its one plain form; an IPv4 address that came by an IPv6 socket is itself. Other text as it is."""
    try:
        address = ip_address(host.split("%", 1)[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


class _Names:
    """What rules say about the resources of one type."""

    __slots__ = ("by_prefix", "lengths", "literal")

    def __init__(self) -> None:
        self.literal: dict[str, Rules] = {}
        self.by_prefix: dict[str, Rules] = {}
        self.lengths: tuple[int, ...] = ()
        """Of the prefixes, each once: so many look-ups find all that a name begins with."""

    def add(self, acl: Acl) -> None:
        names = self.by_prefix if acl.pattern is Pattern.PREFIXED else self.literal
        names[acl.name] = names.get(acl.name, _NONE) | {(acl.operation, acl.allow)}
        if acl.pattern is Pattern.PREFIXED and len(acl.name) not in self.lengths:
            self.lengths = tuple(sorted((*self.lengths, len(acl.name))))

    def about(self, name: str) -> list[Rules]:
        """All that is said of a resource."""
        found = [rules for rules in (self.literal.get(name), self.literal.get(ANYTHING)) if rules is not None]
        for length in self.lengths:
            if length > len(name):
                break
            rules = self.by_prefix.get(name[:length])
            if rules is not None:
                found.append(rules)
        return found


_NOTHING = _Names()


class Authorizer:
    """The rules of one virtual cluster, as they are at one moment. It never changes: other rules make another one."""

    def __init__(self, acls: Iterable[Acl], super_users: frozenset[str], *, allow_unless_told: bool = False) -> None:
        """Prepare.

        Args:
            acls: the rules.
            super_users: principals who may do everything (`super.users`).
            allow_unless_told: whether everybody may do what they like to a resource that no rule is about
                (`allow.everyone.if.no.acl.found`).
        """
        self.acls = frozenset(acls)
        self.super_users = super_users
        self._allow_unless_told = allow_unless_told
        self._all: dict[ResourceType, _Names] = {}
        self._by_principal: dict[str, list[Acl]] = {}
        for acl in self.acls:
            self._all.setdefault(acl.type, _Names()).add(acl)
            self._by_principal.setdefault(acl.principal, []).append(acl)

    def of(self, principal: str, host: str) -> "Rights":
        """What a principal may do from a host."""
        if principal in self.super_users:
            return Rights({}, {}, everything=True)
        address = plain_host(host)
        names: dict[ResourceType, _Names] = {}
        for whose in {principal, ANYBODY}:
            for acl in self._by_principal.get(whose, ()):
                if acl.host == ANYTHING or plain_host(acl.host) == address:
                    names.setdefault(acl.type, _Names()).add(acl)
        return Rights(names, self._all if self._allow_unless_told else None)


class Rights:
    """What one principal may do from one host."""

    __slots__ = ("_all", "_names", "everything")

    def __init__(
        self,
        names: dict[ResourceType, _Names],
        every: dict[ResourceType, _Names] | None,
        *,
        everything: bool = False,
    ) -> None:
        """Use `Authorizer.of`.

        Args:
            names: the rules that are about this principal and this host.
            every: all rules, where what no rule is about is allowed; else None.
            everything: whether no rule counts.
        """
        self._names = names
        self._all = every
        self.everything = everything

    def allow(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether it may be done to the resource of that name."""
        if self.everything:
            return True
        implying = _IMPLYING.get(operation)
        allowed = False
        for rules in self._names.get(kind, _NOTHING).about(name):
            if (operation, False) in rules or (None, False) in rules:
                return False
            if implying is None:
                allowed = allowed or (operation, True) in rules or (None, True) in rules
            else:
                allowed = allowed or any(granted in implying for granted, allow in rules if allow)
        return allowed or (self._all is not None and not self._all.get(kind, _NOTHING).about(name))

    def allow_any(self, operation: Operation, kind: ResourceType) -> bool:
        """Whether it may be done to any resource of a type, whatever its name (Kafka's `authorizeByResourceType`).

        Here one operation implies no other, as in Kafka.
        """
        # A name that nobody uses stands for those that no rule is about.
        if self.everything or self.allow(operation, kind, _UNHEARD_OF):
            return True
        names = self._names.get(kind, _NOTHING)
        denied = _names_that(names.literal, operation, allow=False)
        if ANYTHING in denied:
            return False
        granted = _names_that(names.literal, operation, allow=True)
        if ANYTHING in granted:
            return True
        without = _names_that(names.by_prefix, operation, allow=False)
        lengths = sorted({len(prefix) for prefix in without})

        def stands(name: str) -> bool:
            return not any(name[:length] in without for length in lengths if length <= len(name))

        return any(stands(name) for name in granted - denied) or any(
            stands(name) for name in _names_that(names.by_prefix, operation, allow=True)
        )


_UNHEARD_OF = "hardcode"
"""The name that Kafka asks for, too."""


def _names_that(names: dict[str, Rules], operation: Operation, *, allow: bool) -> set[str]:
    return {name for name, rules in names.items() if (operation, allow) in rules or (None, allow) in rules}
