"""The ACLs of one virtual cluster: indexed for the authorizer, in order for those who list them."""

import hashlib
from collections.abc import Mapping

import msgspec

from headrace.security.access.acls import Acl, AclFilter
from headrace.security.access.authorizer import Authorizer

encode = msgspec.json.Encoder(order="deterministic").encode
"""A rule as it is stored."""


def digest_of(acl: Acl) -> str:
    """The same for the same rule, on every broker."""
    return hashlib.blake2b(encode(acl), digest_size=16).hexdigest()


class ClusterAcls:
    """The rules of one virtual cluster by their digests. A change costs as much as the rules that it is about."""

    def __init__(self, super_users: frozenset[str], *, allow_unless_told: bool) -> None:
        """No rules yet; see `Authorizer`."""
        self.authorizer = Authorizer(super_users=super_users, allow_unless_told=allow_unless_told)
        self._by_digest: dict[str, Acl] = {}
        self._in_order: list[tuple[str, str]] = []
        """What each rule says, and its digest; but for `_added` and `_removed`, which come in with the next list."""
        self._added: dict[str, str] = {}
        self._removed: set[str] = set()

    def __len__(self) -> int:
        return len(self._by_digest)

    def __contains__(self, digest: str) -> bool:
        return digest in self._by_digest

    def __getitem__(self, digest: str) -> Acl:
        return self._by_digest[digest]

    def gone(self, stored: Mapping[str, object]) -> list[str]:
        """The digests of rules that are not among these."""
        return [digest for digest in self._by_digest if digest not in stored]

    def add(self, digest: str, acl: Acl) -> None:
        """Add a rule that is not there yet."""
        self._by_digest[digest] = acl
        if digest in self._removed:
            self._removed.remove(digest)
        else:
            self._added[digest] = str(acl)
        self.authorizer.add(acl)

    def remove(self, digest: str) -> None:
        """Remove a rule, if it is there."""
        acl = self._by_digest.pop(digest, None)
        if acl is not None:
            if self._added.pop(digest, None) is None:
                self._removed.add(digest)
            self.authorizer.remove(acl)

    def in_order(self, wanted: AclFilter) -> list[str]:
        """The digests of the rules that a filter could mean, in the order of what they say."""
        if wanted.exact:
            digest = digest_of(_only(wanted))
            return [digest] if digest in self._by_digest else []
        if self._added or self._removed:
            kept = [each for each in self._in_order if each[1] not in self._removed]
            # Sorting is cheap, as most of them are in order.
            self._in_order = sorted([*kept, *((text, digest) for digest, text in self._added.items())])
            self._added, self._removed = {}, set()
        return [digest for _, digest in self._in_order]


def _only(wanted: AclFilter) -> Acl:
    """The one rule that an exact filter could mean."""
    fields = {name: getattr(wanted, name) for name in Acl.__struct_fields__}
    return Acl(**fields)
