"""Register the console's pages with their required ACLs.

A page needs the same ACLs as the Kafka API that returns the same data.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

import msgspec

from headrace.broker.broker import Broker
from headrace.broker.runtime.scheduler import TimeSlice
from headrace.console.downloads import Download
from headrace.console.sessions import MOST_FIELDS
from headrace.security.access.principal import ANONYMOUS, Principal
from headrace.security.access.required_acls import CLUSTER_NAME, Operation, Resource, ResourceType, Rule, Rules

if TYPE_CHECKING:
    from headrace.console.server_data import Figures
    from headrace.console.sessions import Session


PRINCIPAL = "headrace.principal"
"""Scope key of the authenticated principal; absent without a login."""
SESSION = "headrace.session"
"""Scope key of the session that authenticates it."""
LASTS = "headrace.lasts"
"""Scope key of a function that returns whether the login is still valid; without one it is until the connection closes.
"""


def always() -> bool:
    """Return True, for a login that lasts as long as the connection."""
    return True


class Viewer(msgspec.Struct, frozen=True):
    """The client that requests a page."""

    principal: Principal = ANONYMOUS
    host: str = ""
    session: "Session | None" = None
    """The session that authenticates the viewer, if any."""
    lasts: Callable[[], bool] = always
    """Returns whether the login is still valid. Streams check it for each piece."""


class Target:
    """A page's undecoded path and its query."""

    def __init__(self, raw_path: str, query: str) -> None:
        self.raw_path = raw_path
        self.path = unquote(raw_path, errors="replace")
        pairs = parse_qsl(query[:8192], keep_blank_values=True, errors="surrogateescape", max_num_fields=MOST_FIELDS)
        self.query = dict(pairs)
        self.asker = Viewer()

    @classmethod
    def of(cls, text: str) -> "Target":
        """Return the target of a path with its query."""
        path, _, query = text.partition("?")
        try:
            return cls(path, query)
        except ValueError:
            return cls(path, "")


class ViewRequest(msgspec.Struct, frozen=True):
    """The request for a page."""

    figures: "Figures"
    """The data source."""
    broker: Broker
    """The broker of the page's virtual cluster."""
    path: Mapping[str, str]
    """Path parameters."""
    query: Mapping[str, str]
    form: Mapping[str, str] = {}
    asker: Viewer = Viewer()
    raw_path: str = ""
    """The undecoded path, for links to the same page."""

    @property
    def principal(self) -> Principal:
        """The viewer's principal."""
        return self.asker.principal

    def changed(self, page: str, what: str) -> None:
        """Log that a page changed something."""
        self.broker.access.audit.changed(str(self.principal), self.asker.host, page, what)

    def listing(self) -> AbstractAsyncContextManager[TimeSlice]:
        """See `Lane.listing`."""
        return self.broker.lane.listing()

    def may(self, rule: Rule, resource: Resource) -> bool:
        """Return whether the viewer's ACLs allow an operation on a resource."""
        grants = self.broker.access.grants(self.principal, self.asker.host, resource.cluster)
        return grants is None or grants.allow(rule, resource.name)

    def enters(self, cluster: str) -> bool:
        """Return whether the viewer may see a virtual cluster, by access to something in it."""
        grants = self.broker.access.grants(self.principal, self.asker.host, cluster)
        return grants is None or any(grants.allow(rule, CLUSTER_NAME) for rule in _ENTERING)

    def sees(self, kind: ResourceType, name: str) -> bool:
        """Return whether a page may show a topic, group or transactional ID."""
        return self.may(SHOWN[kind], Resource(kind, name, self.broker.cluster))


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A page as plain data."""

    template: str
    title: str
    data: Any = None
    """Data that only changes with `shape`."""
    cells: dict[str, str] = {}
    """Data that changes often: a place on the page -> its text or chart path."""
    shape: Any = None
    """While it is equal, `cells` has every change."""
    status: int = 200
    download: Download | None = None
    """A file instead of a page."""
    forms: bool = False
    """Whether it consists of forms that change something. It has no live updates, which would replace what was typed.
    """


class Refused(Exception):
    """The viewer is not authorized."""


class NotFound(LookupError):
    """The topic, group or partition does not exist."""


class Redirect(Exception):
    """A path to continue at."""


Handler = Callable[[ViewRequest], Awaitable[View]]


SHOWN = {
    kind: Rule(operation=Operation.DESCRIBE, type=kind, resources=lambda ask: (), shown=True)
    for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
}
"""ACLs for topics, groups and transactional IDs that a page lists."""
_ENTERING = tuple(
    Rule(operation=Operation.DESCRIBE, type=ResourceType.CLUSTER, resources=lambda ask: (), instead=(operation, kind))
    for kind, operations in (
        (ResourceType.TOPIC, (Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.ALTER, Operation.DELETE)),
        (ResourceType.GROUP, (Operation.DESCRIBE, Operation.READ, Operation.DELETE)),
    )
    for operation in operations
)
"""Any one of these suffices, because operations on any name imply no others."""


class Page(msgspec.Struct, frozen=True):
    """A registered page."""

    name: str
    method: str
    path: str
    handler: Handler
    needs: Rules
    live: bool
    """Whether it has live updates."""

    def needed(self, ask: ViewRequest) -> Iterator[tuple[Rule, Resource]]:
        """Yield the required ACLs and resources of a request."""
        return ((rule, resource) for rule in self.needs for resource in rule.resources(ask))

    def check(self, ask: ViewRequest) -> None:
        """Raise Refused for a viewer without the required ACLs."""
        for rule, resource in self.needed(ask):
            if not ask.may(rule, resource):
                reason = f"{rule.operation.value} {rule.type.value}"
                what = f"{ask.principal} may not {reason} {resource.name}"
                ask.broker.access.audit.refused(str(ask.principal), ask.asker.host, reason, what, page=self.name)
                raise Refused(f"{what}.")

    async def view(self, ask: ViewRequest) -> View:
        """Return the page. Raises Refused, NotFound and the handler's errors."""
        self.check(ask)
        return await self.handler(ask)


PAGES: dict[str, Page] = {}
"""By name; `headrace.console.views.load` fills it."""


def page(name: str, path: str, *, needs: Rules, method: str = "GET", live: bool = True) -> Callable[[Handler], Handler]:
    """Register the decorated function as a page. `live`: whether `/events` updates it.

    Raises ValueError for a duplicate name.
    """

    def add(handler: Handler) -> Handler:
        if name in PAGES:
            raise ValueError(f"the page {name} is registered twice")
        PAGES[name] = Page(name, method, path, handler, needs, live)
        return handler

    return add


MOVED = Rule(operation=Operation.READ, type=ResourceType.TOPIC, resources=lambda ask: (), shown=True)
"""Required for each topic whose offsets are reset, as for Kafka's OffsetCommit."""


def topic_resource(ask: ViewRequest, name: str) -> Resource:
    """Return a topic of the requested virtual cluster."""
    return Resource(ResourceType.TOPIC, name, ask.broker.cluster)


def topic_rule(operation: Operation) -> Rule:
    """Return the rule for the topic in the path."""

    def named(ask: ViewRequest) -> Iterable[Resource]:
        yield topic_resource(ask, ask.path["name"])

    return Rule(operation=operation, type=ResourceType.TOPIC, resources=named)


def group_rule(operation: Operation) -> Rule:
    """Return the rule for the group in the path."""

    def named(ask: ViewRequest) -> Iterable[Resource]:
        yield Resource(ResourceType.GROUP, ask.path["name"], ask.broker.cluster)

    return Rule(operation=operation, type=ResourceType.GROUP, resources=named)


def shown_rules(*kinds: ResourceType) -> tuple[Rule, ...]:
    """Return the rules for listed resources of these kinds."""
    return tuple(SHOWN[kind] for kind in kinds)


def cluster_rule(operation: Operation) -> Rule:
    """Return the rule for the server."""

    def cluster(ask: ViewRequest) -> Iterable[Resource]:
        yield Resource(ResourceType.CLUSTER, CLUSTER_NAME, ask.broker.cluster)

    return Rule(operation=operation, type=ResourceType.CLUSTER, resources=cluster)
