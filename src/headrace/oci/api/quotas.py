"""Apply Kafka's client quotas to requests of this API, per principal.

Kafka throttles a client after its response (KIP-219). Here, a request that would have to wait is rejected with 429 and
`retry-after`, and is not counted. Response bytes and processing time delay the next request.

PutMessages bodies count for `producer_byte_rate`, GetMessages responses for `consumer_byte_rate`, processing time for
`request_percentage`, and created or deleted partitions for `controller_mutation_rate`. The client id is the header
`opc-client-info`.
"""

from time import perf_counter

from headrace.broker.admin.quotas import ClientLimits
from headrace.broker.runtime.clock import Clock
from headrace.oci.api.registry import Call, Operation
from headrace.oci.errors import OciError
from headrace.oci.limits import BYTES_TEXT, REQUESTS_TEXT, throttled
from headrace.security.access.principal import ANONYMOUS
from headrace.topics.errors import UnknownTopic

CLIENT_ID = "opc-client-info"
"""Header with the SDK's name and version."""
_PERCENT = 100
"""Unit of `request_percentage`: percent of one second of the event loop."""
_CHANGES_TEXT = "Request was throttled because partition changes limit exhausted, next request can be made in {ms} ms"


def account_of(operation: Operation, call: Call, client_id: str) -> "Account | None":
    """Return the account of a request; None: no quotas."""
    quotas = call.service.quotas
    if not quotas.limiting:
        return None
    try:
        cluster = next((resource.cluster for _, resource in operation.needed(call)), None)
    except (UnknownTopic, OciError):
        # The operation reports the error.
        cluster = None
    found = quotas.of(call.service.broker.cluster if cluster is None else cluster)
    host = call.host if call.principal == ANONYMOUS else ""
    limits = found.limits(call.principal.name, client_id, host) if found.limiting else None
    return None if limits is None else Account(limits, call.service.clock)


class Account:
    """A request of a client with quotas."""

    __slots__ = ("_clock", "_limits", "_resumed", "_spent")

    def __init__(self, limits: ClientLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._resumed = self._spent = 0.0

    def admit(self, operation: Operation, call: Call, size: int) -> None:
        """Count a request with `size` bytes of body, or raise OciError 429."""
        limits, ticks_ms = self._limits, self._clock.ticks_ms()
        if limits.requests is not None:
            _check(limits.requests.charge(0, ticks_ms, limits.requests.window_ms), REQUESTS_TEXT)
        if operation.fetches and limits.fetch is not None:
            _check(limits.fetch.charge(0, ticks_ms), BYTES_TEXT)
        if operation.mutated is not None and limits.mutations is not None:
            partitions = operation.mutated(call)
            wait_ms, allowed = limits.mutations.charge(partitions, ticks_ms, strict=True)
            _check(0 if allowed else wait_ms, _CHANGES_TEXT)
        if operation.produces and limits.produce is not None:
            wait_ms, allowed = limits.produce.charge_unless_late(size, ticks_ms)
            _check(0 if allowed else wait_ms, BYTES_TEXT)

    def resume(self) -> None:
        """Start measuring processing time."""
        self._resumed = perf_counter()

    def pause(self) -> None:
        """Stop measuring."""
        self._spent += perf_counter() - self._resumed

    def settle(self, operation: Operation, size: int) -> None:
        """Count the processing time and `size` bytes of the response."""
        limits, ticks_ms = self._limits, self._clock.ticks_ms()
        if limits.requests is not None:
            limits.requests.add(self._spent * _PERCENT, ticks_ms)
        if operation.fetches and limits.fetch is not None:
            limits.fetch.add(size, ticks_ms)


def _check(wait_ms: int, text: str) -> None:
    if wait_ms:
        raise throttled(text.format(ms=wait_ms), wait_ms)
