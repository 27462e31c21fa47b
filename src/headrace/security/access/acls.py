"""Kafka ACLs.

Source: Apache Kafka documentation, "Authorization and ACLs"; KIP-11, KIP-290 (prefixes).
"""

from enum import Enum

import msgspec

from headrace.security.access.required_acls import CLUSTER_NAME, Operation, ResourceType

ANYTHING = "*"
"""As the name of a literal ACL: every resource of its type. As a host: every host."""
ANYBODY = "User:*"
"""As the principal of an ACL: every user."""
_MOST_NAME = 249
"""Maximum characters of a resource name, as of a topic name."""
_MOST_PRINCIPAL = 1_024
_MOST_HOST = 255


class InvalidAcl(ValueError):
    """An invalid ACL; the message has the reason."""


class Pattern(Enum):
    """How an ACL's name matches a resource."""

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class Acl(msgspec.Struct, frozen=True, kw_only=True):
    """One ACL."""

    type: ResourceType
    name: str
    pattern: Pattern = Pattern.LITERAL
    principal: str
    """`User:<name>`, or `User:*`."""
    host: str = ANYTHING
    """Client address, or `*`."""
    operation: Operation | None
    """None: all (Kafka's `All`)."""
    allow: bool
    """False: it denies, and overrides ACLs that allow."""

    def check(self) -> None:
        """Raise InvalidAcl if Kafka would reject it, or if it is too long."""
        if not self.name:
            raise InvalidAcl("the resource has no name: give one, or * for every resource of its type")
        if self.type is ResourceType.CLUSTER and self.name != CLUSTER_NAME:
            raise InvalidAcl(f"the only resource of type Cluster is {CLUSTER_NAME}, found {self.name[:_MOST_NAME]!r}")
        kind, colon, _ = self.principal.partition(":")
        if not (kind and colon):
            raise InvalidAcl(f"expected a principal such as User:alice, found {self.principal[:_MOST_NAME]!r}")
        if not self.host:
            raise InvalidAcl("the rule has no host: give an address, or * for every host")
        for what, text, most in (
            ("resource's name", self.name, _MOST_NAME),
            ("principal", self.principal, _MOST_PRINCIPAL),
            ("host", self.host, _MOST_HOST),
        ):
            if len(text) > most:
                raise InvalidAcl(f"the {what} has {len(text)} characters, at most {most} are taken")

    def __str__(self) -> str:
        verb = "allow" if self.allow else "deny"
        operation = "All" if self.operation is None else self.operation.value
        return (
            f"{verb} {self.principal} {operation} {self.type.value} {self.pattern.value}:{self.name} from {self.host}"
        )


class AclFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects ACLs to list or delete. None matches everything."""

    type: ResourceType | None = None
    name: str | None = None
    pattern: Pattern | None = None
    matching: bool = False
    """Whether the name is a resource's, and all ACLs that apply to it match (Kafka's `MATCH`)."""
    principal: str | None = None
    host: str | None = None
    operation: Operation | None = None
    every_operation: bool = False
    """Whether only ACLs for all operations match; `operation` is None then."""
    allow: bool | None = None

    @property
    def exact(self) -> bool:
        """Whether it can match one ACL only."""
        return (
            self.type is not None
            and self.name is not None
            and self.pattern is not None
            and self.principal is not None
            and self.host is not None
            and (self.operation is not None or self.every_operation)
            and self.allow is not None
        )

    def means(self, acl: Acl) -> bool:
        """Return whether an ACL matches (Kafka's `AclBindingFilter.matches`)."""
        return (
            (self.type is None or self.type is acl.type)
            and self._means_name(acl)
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and (not self.every_operation or acl.operation is None)
            and (self.operation is None or self.operation is acl.operation)
            and (self.allow is None or self.allow is acl.allow)
        )

    def _means_name(self, acl: Acl) -> bool:
        if self.pattern is not None and self.pattern is not acl.pattern:
            return False
        if self.name is None or self.name == acl.name:
            return True
        if not self.matching:
            return False
        return self.name.startswith(acl.name) if acl.pattern is Pattern.PREFIXED else acl.name == ANYTHING
