"""Authorization in all virtual clusters: stored ACLs, and cached decisions."""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import structlog

from headrace.aio.tasks import to_the_end
from headrace.broker.admin.audit import Audit
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.documents import readable
from headrace.broker.ports import DocumentStorage
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.scheduler import CooperativeScheduler, TimeSlice
from headrace.metrics.unreadable_values import WHOLE
from headrace.security.access.acls import Acl, AclFilter
from headrace.security.access.authorizer import Authorizer, Rights
from headrace.security.access.principal import Principal, lacks_tenancy
from headrace.security.access.required_acls import CLUSTER_NAME, SERVER, Operation, ResourceType, Rule

encode = msgspec.json.Encoder(order="deterministic").encode
"""Encodes an ACL for storage."""


def digest_of(acl: Acl) -> str:
    """Return a digest that is equal on every broker."""
    return hashlib.blake2b(encode(acl), digest_size=16).hexdigest()


class ClusterAcls:
    """ACLs of one virtual cluster by digest. A change costs in proportion to the changed ACLs."""

    def __init__(self, super_users: frozenset[str], *, allow_unless_told: bool) -> None:
        self.authorizer = Authorizer(super_users=super_users, allow_unless_told=allow_unless_told)
        self._by_digest: dict[str, Acl] = {}
        self._in_order: list[tuple[str, str]] = []
        """Text and digest of ACLs, except `_added` and `_removed`, which are applied at the next listing."""
        self._added: dict[str, str] = {}
        self._removed: set[str] = set()

    def __len__(self) -> int:
        return len(self._by_digest)

    def __contains__(self, digest: str) -> bool:
        return digest in self._by_digest

    def __getitem__(self, digest: str) -> Acl:
        return self._by_digest[digest]

    def gone(self, stored: Mapping[str, object]) -> list[str]:
        """Return digests that are not in `stored`."""
        return [digest for digest in self._by_digest if digest not in stored]

    def add(self, digest: str, acl: Acl) -> None:
        """Add a new ACL."""
        self._by_digest[digest] = acl
        if digest in self._removed:
            self._removed.remove(digest)
        else:
            self._added[digest] = str(acl)
        self.authorizer.add(acl)

    def remove(self, digest: str) -> None:
        """Remove an ACL, if it exists."""
        acl = self._by_digest.pop(digest, None)
        if acl is not None:
            if self._added.pop(digest, None) is None:
                self._removed.add(digest)
            self.authorizer.remove(acl)

    def in_order(self, wanted: AclFilter) -> list[str]:
        """Return digests of possible matches, in order of their text."""
        if wanted.exact:
            digest = digest_of(_only(wanted))
            return [digest] if digest in self._by_digest else []
        if self._added or self._removed:
            kept = [each for each in self._in_order if each[1] not in self._removed]
            # Fast: most of them are in order.
            self._in_order = sorted([*kept, *((text, digest) for digest, text in self._added.items())])
            self._added, self._removed = {}, set()
        return [digest for _, digest in self._in_order]


def _only(wanted: AclFilter) -> Acl:
    fields = {name: getattr(wanted, name) for name in Acl.__struct_fields__}
    return Acl(**fields)


KIND = "acls"
"""Kind of the documents: `<cluster>/<digest of the ACL>` -> the ACL."""
FIRST = "users.first"
"""Kind of the document that names the first user (`--bootstrap-user`), a permanent super user."""
MOST_ACLS = 10_000
"""Maximum of one virtual cluster. All are in memory."""
MOST_MEANT = MOST_ACLS
"""Maximum ACLs that one deletion may match (Kafka's MAX_RECORDS_PER_USER_OP)."""
_AT_ONCE = 256
"""ACLs processed between checks of the time."""
_MOST_KNOWN = 4_096
"""Maximum cached principals at a host, and names for each rule."""
MOST_REMEMBERED = 200_000
"""Maximum cached decisions in total."""

_log = structlog.get_logger("headrace.broker.admin")
_decoder = msgspec.json.Decoder(Acl)


class TooManyAcls(Exception):
    """A virtual cluster would exceed `MOST_ACLS`, or a deletion `MOST_MEANT`."""


class Grants:
    """Cached decisions for one principal, host and virtual cluster."""

    __slots__ = ("_access", "_cluster", "_host", "_known", "_principal", "_rights", "_version")

    def __init__(self, access: "AclAuthorizer", principal: Principal, host: str, cluster: str) -> None:
        """Use `AclAuthorizer.grants`."""
        self._access = access
        self._principal = principal
        self._host = host
        self._cluster = cluster
        self._known: dict[int, dict[str, bool]] = {}
        self._version = -1
        self._rights: Rights

    def _renew(self) -> None:
        if self._version != self._access.version:
            self._version = self._access.version
            self._known = {}
            self._rights = self._rights_in(self._cluster)

    def _rights_in(self, cluster: str) -> Rights:
        return self._access.of(cluster).of(str(self._principal), self._host, self._principal.also_denied)

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether an operation is authorized, without caching."""
        self._renew()
        return self._rights.allow(operation, kind, name)

    def known(self, rule: Rule) -> dict[str, bool]:
        """Return a rule's cached decisions by name."""
        self._renew()
        # Rules are created at program start and stay, so ids are fast keys.
        key = id(rule)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = {}
        return found

    def allow(self, rule: Rule, name: str) -> bool:
        """Whether a rule is authorized for a resource name."""
        granted = self.known(rule).get(name)
        return self.look_up(rule, name) if granted is None else granted

    def look_up(self, rule: Rule, name: str) -> bool:
        """Return a decision that is not cached."""
        known = self.known(rule)
        if len(known) >= _MOST_KNOWN:
            known.clear()
        if self._access.count_answer():
            known = self.known(rule)
        rights = self._rights_in(SERVER) if rule.of_server else self._rights
        granted = known[name] = rights.allow(rule.operation, rule.type, name) or (
            rule.instead is not None and _may_instead(rights, rule)
        )
        return granted


def _warn(where: str, principals: Iterable[str]) -> None:
    found = sorted({each for each in principals if lacks_tenancy(each)})
    if found:
        _log.warning(
            "principals without a tenancy match no client: name them User:<tenancy>/<user>",
            where=where,
            count=len(found),
            first=found[0],
        )


def _may_instead(rights: Rights, rule: Rule) -> bool:
    assert rule.instead is not None
    operation, kind = rule.instead
    if kind is ResourceType.CLUSTER:
        return rights.allow(operation, kind, CLUSTER_NAME)
    return rights.allow_any(operation, kind)


class AclAuthorizer:
    """ACLs of all virtual clusters of a server."""

    def __init__(
        self,
        documents: DocumentStorage,
        settings: BrokerSettings,
        clock: Clock,
        lane: CooperativeScheduler | None = None,
    ) -> None:
        self.audit = Audit(clock)
        """Logs rejections."""
        self.enabled = bool(settings.authorizer_class_name)
        """Whether authorization is enabled."""
        self.version = 0
        """Changes with each change of ACLs."""
        self._super_users = settings.super_principals
        self._first: frozenset[str] = frozenset()
        self._closed: frozenset[str] = frozenset()
        """Virtual clusters with an unreadable ACL. WHOLE: all."""
        self._allow_unless_told = settings.allow_everyone_if_no_acl_found
        self._documents = documents
        self._lane = lane or CooperativeScheduler()
        self._changing = asyncio.Lock()
        self._clusters: dict[str, ClusterAcls] = {}
        self._grants: dict[tuple[Principal, str, str], Grants] = {}
        self._remembered = 0
        _warn("super.users", self._super_users)

    async def load(self) -> None:
        """Load stored ACLs. Raises StorageUnavailable."""
        if not self.enabled:
            return
        async with self._changing:
            pace = self._lane.pace()
            found: dict[str, dict[str, Acl]] = {}
            for name, acl in (await readable(self._documents, KIND, lambda _, text: _decoder.decode(text))).items():
                cluster, _, digest = name.partition("/")
                found.setdefault(cluster, {})[digest] = acl
            first = frozenset(f"User:{name}" for name in await readable(self._documents, FIRST, lambda name, _: name))
            # An unreadable ACL may be a denial: then only super users are authorized.
            closed = frozenset(name.partition("/")[0] for name in self._documents.unreadable.names(KIND))
            before = self._closed
            if first != self._first or not closed <= before:
                # Clusters that open again wait for their ACLs.
                self._first, self._closed = first, before | closed
                for acls in self._clusters.values():
                    acls.authorizer.super_users = self._super_users | first
                self._forget_answers()
            for cluster in {*found, *self._clusters}:
                stored, acls = found.get(cluster, {}), self._of(cluster)
                added = {digest: acl for digest, acl in stored.items() if digest not in acls}
                _warn(cluster, (acl.principal for acl in added.values() if acl.allow))
                await self._change(cluster, added, acls.gone(stored), pace)
            if closed != self._closed:
                self._closed = closed
                self._forget_answers()

    async def reload(self, kinds: frozenset[str]) -> None:
        """Load after another broker's change of these kinds. Empty: any kind. Raises StorageUnavailable."""
        if not kinds or kinds & {KIND, FIRST}:
            await self.load()

    def of(self, cluster: str) -> Authorizer:
        """Return the current ACLs of a virtual cluster."""
        if cluster in self._closed or WHOLE in self._closed:
            return Authorizer(super_users=self._super_users | self._first)
        return self._of(cluster).authorizer

    def _of(self, cluster: str) -> ClusterAcls:
        # Not kept if empty: deleted clusters may be requested for months.
        return self._clusters.get(cluster) or ClusterAcls(
            self._super_users | self._first, allow_unless_told=self._allow_unless_told
        )

    def grants(self, principal: Principal, host: str, cluster: str) -> Grants | None:
        """Return a client's decisions. None: authorization is disabled."""
        if not self.enabled:
            return None
        key = (principal, host, cluster)
        found = self._grants.get(key)
        if found is None:
            if len(self._grants) >= _MOST_KNOWN:
                self._grants.clear()
            found = self._grants[key] = Grants(self, *key)
        return found

    def count_answer(self) -> bool:
        """Count a cached decision. Return whether all were dropped, above the limit."""
        self._remembered += 1
        if self._remembered <= MOST_REMEMBERED:
            return False
        self._forget_answers()
        return True

    def _forget_answers(self) -> None:
        self.version += 1
        self._remembered = 0

    async def acls(self, cluster: str, wanted: AclFilter, pace: TimeSlice) -> list[Acl]:
        """Return matching ACLs of a virtual cluster, in order."""
        return list((await self._find(cluster, wanted, pace)).values())

    async def _find(self, cluster: str, wanted: AclFilter, pace: TimeSlice) -> dict[str, Acl]:
        acls = self._of(cluster)
        every = acls.in_order(wanted)
        found: dict[str, Acl] = {}
        for start in range(0, len(every), _AT_ONCE):
            for digest in every[start : start + _AT_ONCE]:
                # It may have been removed during a pause.
                if digest in acls and wanted.means(acl := acls[digest]):
                    found[digest] = acl
            if pace.over:
                await pace.rest()
        return found

    async def create(self, cluster: str, acls: Sequence[Acl], pace: TimeSlice) -> None:
        """Add and store ACLs. Existing ones are ignored.

        Raises:
            TooManyAcls, and as `DocumentStorage.save`.
        """
        await to_the_end(self._create(cluster, acls, pace))

    async def _create(self, cluster: str, acls: Sequence[Acl], pace: TimeSlice) -> None:
        async with self._changing:
            present = self._of(cluster)
            added = {digest: acl async for acl in pace.each(acls) if (digest := digest_of(acl)) not in present}
            if len(present) + len(added) > MOST_ACLS:
                raise TooManyAcls(f"a cluster has at most {MOST_ACLS} access rules, and there are {len(present)}")
            stored: dict[tuple[str, str], bytes | None] = {
                (KIND, f"{cluster}/{digest}"): encode(acl) async for digest, acl in pace.each(added.items())
            }
            await self._documents.save(stored)
            await self._change(cluster, added, (), pace)

    async def _change(self, cluster: str, added: dict[str, Acl], gone: Iterable[str], pace: TimeSlice) -> None:
        if not added and not gone:
            return
        acls = self._clusters[cluster] = self._of(cluster)
        going = {digest: acls[digest] for digest in gone}
        try:
            for allow in (False, True):
                async for digest, acl in pace.each(added.items()):
                    if acl.allow is allow:
                        acls.add(digest, acl)
            for allow in (True, False):
                async for digest, acl in pace.each(going.items()):
                    if acl.allow is allow:
                        acls.remove(digest)
        finally:
            if not acls:
                del self._clusters[cluster]
            self._forget_answers()

    async def delete(self, cluster: str, filters: Sequence[AclFilter], pace: TimeSlice) -> list[list[Acl]]:
        """Delete matching ACLs. Return those of each filter.

        Raises:
            TooManyAcls: more than `MOST_MEANT` match. As `DocumentStorage.save`.
        """
        return await to_the_end(self._delete(cluster, filters, pace))

    async def _delete(self, cluster: str, filters: Sequence[AclFilter], pace: TimeSlice) -> list[list[Acl]]:
        async with self._changing:
            meant = await self._meant(cluster, filters, pace)
            gone = dict.fromkeys(digest for some in meant for digest in some)
            await self._documents.save({(KIND, f"{cluster}/{digest}"): None for digest in gone})
            await self._change(cluster, {}, gone, pace)
            return [list(some.values()) for some in meant]

    async def _meant(self, cluster: str, filters: Sequence[AclFilter], pace: TimeSlice) -> list[dict[str, Acl]]:
        """Return the matches of each filter. Equal filters are evaluated once. Raises TooManyAcls."""
        known: dict[AclFilter, dict[str, Acl]] = {}
        meant: list[dict[str, Acl]] = []
        left = MOST_MEANT
        for wanted in filters:
            if wanted not in known:
                known[wanted] = await self._find(cluster, wanted, pace)
            left -= len(known[wanted])
            if left < 0:
                raise TooManyAcls(f"the filters of one request mean at most {MOST_MEANT} access rules together")
            meant.append(known[wanted])
        return meant

    async def forget(self, cluster: str) -> None:
        """Delete the ACLs of a deleted virtual cluster. Raises as `DocumentStorage.save`."""
        async with self._changing:
            stored = [name for name in await self._documents.load(KIND) if name.startswith(f"{cluster}/")]
            await self._documents.save({(KIND, name): None for name in stored})
            if self._clusters.pop(cluster, None):
                self._forget_answers()
