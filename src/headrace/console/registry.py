"""The console's pages: each registers itself here, with what it needs of whoever asks; there is no default.

Requirements are rules in Kafka's terms: a page needs what the Kafka API needs that returns the same.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

import msgspec

from headrace.broker.broker import Broker
from headrace.broker.runtime.scheduler import TimeSlice
from headrace.console.sessions import MOST_FIELDS
from headrace.security.access.principal import ANONYMOUS, Principal
from headrace.security.access.required_acls import CLUSTER_NAME, Operation, Resource, ResourceType, Rule, Rules

if TYPE_CHECKING:
    from headrace.console.server_data import Figures
    from headrace.console.sessions import Session


PRINCIPAL = "headrace.principal"
"""Where the scope of an HTTP request has who asks, as far as a login has told; else it is nobody known."""
SESSION = "headrace.session"
"""Where it has the session by which that is known."""
LASTS = "headrace.lasts"
"""Where it has a function that tells whether the login lasts; without one it does as long as the connection."""


def always() -> bool:
    """Who asks has no login that could end before the connection does."""
    return True


class Viewer(msgspec.Struct, frozen=True):
    """Who asks for a page, and from where."""

    principal: Principal = ANONYMOUS
    host: str = ""
    session: "Session | None" = None
    """What tells who asks, where that is a session of the pages."""
    lasts: Callable[[], bool] = always
    """Whether the login lasts: what is told for longer than one answer asks at each piece."""


class Target:
    """Where a page is: its path, as it was written, and its query."""

    def __init__(self, raw_path: str, query: str) -> None:
        self.raw_path = raw_path
        self.path = unquote(raw_path, errors="replace")
        pairs = parse_qsl(query[:8192], keep_blank_values=True, errors="surrogateescape", max_num_fields=MOST_FIELDS)
        self.query = dict(pairs)
        self.asker = Viewer()

    @classmethod
    def of(cls, text: str) -> "Target":
        """A path with its query."""
        path, _, query = text.partition("?")
        try:
            return cls(path, query)
        except ValueError:
            return cls(path, "")


class ViewRequest(msgspec.Struct, frozen=True):
    """What a page is asked for."""

    figures: "Figures"
    """Where everything is looked up."""
    broker: Broker
    """Of the virtual cluster whose page this is."""
    path: Mapping[str, str]
    """What stands in the path in place of a name."""
    query: Mapping[str, str]
    form: Mapping[str, str] = {}
    asker: Viewer = Viewer()

    @property
    def principal(self) -> Principal:
        """The principal that opened the page."""
        return self.asker.principal

    def changed(self, page: str, what: str) -> None:
        """Have the log tell of something that a page has changed."""
        self.broker.access.audit.changed(str(self.principal), self.asker.host, page, what)

    def listing(self) -> AbstractAsyncContextManager[TimeSlice]:
        """See `Lane.listing`."""
        return self.broker.lane.listing()

    def may(self, rule: Rule, resource: Resource) -> bool:
        """Whether what a rule needs of a resource is granted to who asks."""
        grants = self.broker.access.grants(self.principal, self.asker.host, resource.cluster)
        return grants is None or grants.allow(rule, resource.name)

    def enters(self, cluster: str) -> bool:
        """Whether who asks may be told of a virtual cluster: something in it is theirs to see or to use."""
        grants = self.broker.access.grants(self.principal, self.asker.host, cluster)
        return grants is None or any(grants.allow(rule, CLUSTER_NAME) for rule in _ENTERING)

    def sees(self, kind: ResourceType, name: str) -> bool:
        """Whether a page may show the topic or group of that name."""
        return self.may(SHOWN[kind], Resource(kind, name, self.broker.cluster))


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A page as plain data."""

    template: str
    title: str
    data: Any = None
    """What only changes with `shape`."""
    cells: dict[str, str] = {}
    """What changes all the time: a place on the page -> its text, or the path of its chart."""
    shape: Any = None
    """While this stays the same, the cells tell everything that is new."""
    status: int = 200


class Refused(Exception):
    """What the page shows, or does, is not for who asks."""


class NotFound(LookupError):
    """There is no such topic, group or partition; the message says so."""


class Redirect(Exception):
    """What was asked for is done, or is elsewhere: the path to go on to."""


Handler = Callable[[ViewRequest], Awaitable[View]]


SHOWN = {
    kind: Rule(operation=Operation.DESCRIBE, type=kind, resources=lambda ask: (), shown=True)
    for kind in (ResourceType.TOPIC, ResourceType.GROUP)
}
"""What has to be granted of each topic and group that a page shows by the way."""
_ENTERING = tuple(
    Rule(operation=Operation.DESCRIBE, type=ResourceType.CLUSTER, resources=lambda ask: (), instead=(operation, kind))
    for kind, operations in (
        (ResourceType.TOPIC, (Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.ALTER, Operation.DELETE)),
        (ResourceType.GROUP, (Operation.DESCRIBE, Operation.READ, Operation.DELETE)),
    )
    for operation in operations
)
"""Each of them is enough; asked for any name, one operation implies no other."""


class Page(msgspec.Struct, frozen=True):
    """One registered page."""

    name: str
    method: str
    path: str
    handler: Handler
    needs: Rules
    live: bool
    """Whether it tells what changes while it is open."""

    def needed(self, ask: ViewRequest) -> Iterator[tuple[Rule, Resource]]:
        """What one request needs of `ask.principal`: each rule with each resource that the request names."""
        return ((rule, resource) for rule in self.needs for resource in rule.resources(ask))

    def check(self, ask: ViewRequest) -> None:
        """Raises Refused where something that the page needs is not granted to who asks."""
        for rule, resource in self.needed(ask):
            if not ask.may(rule, resource):
                reason = f"{rule.operation.value} {rule.type.value}"
                what = f"{ask.principal} may not {reason} {resource.name}"
                ask.broker.access.audit.refused(str(ask.principal), ask.asker.host, reason, what, page=self.name)
                raise Refused(f"{what}.")

    async def view(self, ask: ViewRequest) -> View:
        """The page, asked about first. Raises Refused, NotFound and what else its handler raises."""
        self.check(ask)
        return await self.handler(ask)


PAGES: dict[str, Page] = {}
"""By name; `headrace.console.views.load` fills it."""


def page(name: str, path: str, *, needs: Rules, method: str = "GET", live: bool = True) -> Callable[[Handler], Handler]:
    """Register the function that makes a page.

    Args:
        name: by which it is counted.
        path: where it is found, as Starlette writes paths.
        needs: what a request needs of whoever sends it, as made by `console.registry`.
        method: GET, or POST for what changes something.
        live: whether `/events` tells what changes on it.

    Raises:
        ValueError: there is a page of that name.
    """

    def add(handler: Handler) -> Handler:
        if name in PAGES:
            raise ValueError(f"the page {name} is registered twice")
        PAGES[name] = Page(name, method, path, handler, needs, live)
        return handler

    return add


MOVED = Rule(operation=Operation.READ, type=ResourceType.TOPIC, resources=lambda ask: (), shown=True)
"""What has to be granted of each topic in which positions of a group are moved, as of Kafka's OffsetCommit."""


def topic_resource(ask: ViewRequest, name: str) -> Resource:
    """A topic of the virtual cluster that is asked about."""
    return Resource(ResourceType.TOPIC, name, ask.broker.cluster)


def topic_rule(operation: Operation) -> Rule:
    """An operation on the topic in the path."""

    def named(ask: ViewRequest) -> Iterable[Resource]:
        yield topic_resource(ask, ask.path["name"])

    return Rule(operation=operation, type=ResourceType.TOPIC, resources=named)


def group_rule(operation: Operation) -> Rule:
    """An operation on the group in the path."""

    def named(ask: ViewRequest) -> Iterable[Resource]:
        yield Resource(ResourceType.GROUP, ask.path["name"], ask.broker.cluster)

    return Rule(operation=operation, type=ResourceType.GROUP, resources=named)


def shown_rules(*kinds: ResourceType) -> tuple[Rule, ...]:
    """Describing whatever of these kinds the page shows."""
    return tuple(SHOWN[kind] for kind in kinds)


def cluster_rule(operation: Operation) -> Rule:
    """An operation on the server as a whole."""

    def cluster(ask: ViewRequest) -> Iterable[Resource]:
        yield Resource(ResourceType.CLUSTER, CLUSTER_NAME, ask.broker.cluster)

    return Rule(operation=operation, type=ResourceType.CLUSTER, resources=cluster)
