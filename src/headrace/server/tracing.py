"""Traces through the server, by OpenTelemetry. Needs `headrace[otel]`; imported only if configured.

The server continues traces of clients and begins none. Records carry them in the header `traceparent`, HTTP requests as
W3C Trace Context.
"""

import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar

from opentelemetry.trace import Span, Status, StatusCode, format_span_id, format_trace_id, use_span
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.broker.broker import Broker
from headrace.broker.topics.live import LiveTopic
from headrace.broker.virtual_clusters import ClusterListener
from headrace.records.batch import peek
from headrace.records.fallback.header import Buffer
from headrace.records.traceparents import MOST, is_traceparent, traceparents
from headrace.topics.model import Appended
from headrace.tracing.exporter import TraceExporter, Value

_OPERATION = "headrace.operation"
"""Key of the operation's name in the scope of an HTTP request."""
_current: ContextVar[Span | None] = ContextVar("headrace trace", default=None)
"""Span of the request being served."""


class Tracing(ClusterListener):
    """Exports spans for requests and batches that belong to a trace."""

    def __init__(self, exporter: TraceExporter) -> None:
        self._exporter = exporter

    # HTTP requests

    def http(self, app: ASGIApp) -> ASGIApp:
        """Give each request with a trace context a span."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            found = [value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"]
            if len(found) != 1 or not is_traceparent(found[0]):
                await app(scope, receive, send)
                return
            span = self._exporter.begun(scope["method"], found[0])

            async def told(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _set_status(span, message["status"])
                await send(message)

            # Each request has its own task, and thus context.
            _current.set(span if span.is_recording() else None)
            with use_span(span, end_on_exit=True):
                await app(scope, receive, told)
                span.update_name(scope.get(_OPERATION, scope["method"]))

        return traced

    @staticmethod
    def traceparent_now() -> str | None:
        """Return the current request's trace context for the header of a record, or None."""
        span = _current.get()
        if span is None:
            return None
        own = span.get_span_context()
        return f"00-{format_trace_id(own.trace_id)}-{format_span_id(own.span_id)}-{own.trace_flags:02x}"

    # Batches: `headrace.broker.topics.live.BatchTracer`

    def topic_added(self, broker: Broker, live: LiveTopic) -> None:
        """Trace the topic's batches from now on."""
        live.tracer = self

    def appending(
        self, topic: str, partition: int, batch: Buffer, done: Callable[[Appended | Exception], None]
    ) -> Callable[[Appended | Exception], None]:
        """See `BatchTracer`."""
        parents = traceparents(batch)
        if not parents:
            return done
        began_ns = time.time_ns()
        told = {**_place(topic, partition), "messaging.batch.message_count": peek(batch).count}

        def traced(result: Appended | Exception) -> None:
            failed = "" if isinstance(result, Appended) else str(result)
            if isinstance(result, Appended):
                told["headrace.offset"] = result.base_offset
            self._exporter.continued(f"append {topic}", parents, told, began_ns=began_ns, failed=failed)
            done(result)

        return traced

    def handed_out(self, topic: str, partition: int, batches: Sequence[Buffer]) -> None:
        """See `BatchTracer`."""
        found: dict[str, int] = {}
        for batch in batches:
            for parent in traceparents(batch):
                found.setdefault(parent, peek(batch).base_offset)
            if len(found) >= MOST:
                break
        for parent, offset in found.items():
            self._exporter.continued(f"read {topic}", [parent], {**_place(topic, partition), "headrace.offset": offset})


def _place(topic: str, partition: int) -> dict[str, Value]:
    return {
        "messaging.system": "headrace",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(partition),
    }


def _set_status(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))
