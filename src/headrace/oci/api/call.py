"""One request to the API and its answer, as an operation sees them."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.broker.runtime.scheduler import TimeSlice
from headrace.oci.faults import NONE, Injected
from headrace.security.access.principal import Principal
from headrace.security.access.required_acls import Resource, Rule

if TYPE_CHECKING:
    from headrace.oci.api.service import OciService


_MOST_TOLD = 128


class Call:
    """A request that was routed, authenticated and read. Path, query, headers and body have their types already."""

    __slots__ = ("body", "endpoint", "headers", "host", "injected", "path", "principal", "query", "service")

    def __init__(
        self,
        service: "OciService",
        *,
        path: Mapping[str, str],
        query: Any,
        headers: Any,
        body: Any,
        principal: Principal,
        host: str,
        endpoint: str,
    ) -> None:
        """Put together by the API.

        Args:
            service: what operations work on.
            path: path parameters, decoded.
            query: the operation's struct of query parameters.
            headers: its struct of request headers.
            body: the decoded body, None without one.
            principal: who asks.
            host: the address that they ask from.
            endpoint: the URL by which this client reached the API, such as `http://127.0.0.1:8080`.
        """
        self.service = service
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.principal = principal
        self.host = host
        self.endpoint = endpoint
        self.injected: Injected = NONE
        """Faults that were asked for."""

    @property
    def asked_about(self) -> bool:
        """Whether access rules count."""
        return self.service.broker.access.enabled

    def listing(self) -> AbstractAsyncContextManager[TimeSlice]:
        """See `Lane.listing`."""
        return self.service.broker.lane.listing()

    def tell_change(self, operation: str) -> None:
        """Have the log tell that this call has changed something. The request's id is told with every line of it."""
        what = ", ".join([operation, *(str(each)[:_MOST_TOLD] for each in self.path.values())])
        self.service.broker.access.audit.changed(str(self.principal), self.host, operation, what)

    def may(self, rule: Rule, resource: Resource) -> bool:
        """Whether what a rule needs of a resource is granted to who asks."""
        grants = self.service.broker.access.grants(self.principal, self.host, resource.cluster)
        return grants is None or grants.allow(rule, resource.name)


class Answer(msgspec.Struct, frozen=True):
    """What an operation answers when all went well; the status is the registration's."""

    body: Any = None
    """A value for JSON, or bytes that are JSON already; None: no body."""
    headers: dict[str, str] = {}
