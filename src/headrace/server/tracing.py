"""Traces by OpenTelemetry, sent as OTLP over HTTP. Needs `headrace[otel]`; imported only where traces are asked for.

Traces that clients began are continued, none are begun: a request or a record without a `traceparent` that says
`sampled` costs a look and nothing more. A record tells its trace in its header `traceparent`, an HTTP request in its
(W3C Trace Context). So one trace leads from the producer through the log to whoever reads, on every way.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_span_id, format_trace_id, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace import __version__
from headrace.broker.broker import Broker
from headrace.broker.topics.live import LiveTopic
from headrace.records.batch import peek
from headrace.records.fallback.header import Buffer
from headrace.records.traceparents import MOST, NAME, is_traceparent, traceparents
from headrace.topics.model import Appended

_PATH = "/v1/traces"
_SEND_S = 2
"""Spans wait at most this long, and sending them takes no longer."""
_read = TraceContextTextMapPropagator().extract
_OPERATION = "headrace.operation"
"""Where the scope of an HTTP request has the name of the operation, once it is known."""
_Value = str | int
_current: ContextVar[Span | None] = ContextVar("headrace trace", default=None)
"""Of the request being served."""


class Tracing:
    """Makes spans and sends them, from a thread of its own and behind a bounded queue: what is too much is dropped."""

    def __init__(self, endpoint: str, service: str) -> None:
        """Begin.

        Args:
            endpoint: URL of an OTLP/HTTP receiver; spans go to `/v1/traces` below it.
            service: what the spans tell as `service.name`.
        """
        resource = Resource.create({"service.name": service, "service.version": __version__})
        self._provider = TracerProvider(resource=resource, sampler=ParentBased(ALWAYS_OFF))
        exporter = OTLPSpanExporter(endpoint.rstrip("/") + _PATH, timeout=_SEND_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=_SEND_S * 500))
        self._tracer = self._provider.get_tracer("headrace", __version__)

    def close(self) -> None:
        """Send what is left; blocks for a moment."""
        self._provider.shutdown()

    def continued(
        self,
        name: str,
        parents: Sequence[str],
        attributes: Mapping[str, _Value],
        *,
        began_ns: int | None = None,
        failed: str = "",
    ) -> None:
        """One span, ended now, in each of the traces.

        Args:
            name: what was done.
            parents: the traces, each as its `traceparent`.
            attributes: what else is told.
            began_ns: when it began, since 1970; None: now.
            failed: why it failed; empty: it did not.
        """
        for parent in parents[:MOST]:
            span = self._tracer.start_span(
                name, _read({NAME: parent}), kind=SpanKind.SERVER, attributes=attributes, start_time=began_ns
            )
            _end(span, failed)

    # Of requests by HTTP

    def http(self, app: ASGIApp) -> ASGIApp:
        """The application, with a span around each request that tells its trace."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            found = [value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"]
            if len(found) != 1 or not is_traceparent(found[0]):
                await app(scope, receive, send)
                return
            span = self._tracer.start_span(scope["method"], _read({NAME: found[0]}), kind=SpanKind.SERVER)

            async def told(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _tell_status(span, message["status"])
                await send(message)

            # Each request has a task, and so a context, of its own.
            _current.set(span if span.is_recording() else None)
            with use_span(span, end_on_exit=True):
                await app(scope, receive, told)
                span.update_name(scope.get(_OPERATION, scope["method"]))

        return traced

    @staticmethod
    def traceparent_now() -> str | None:
        """The trace that the request being served belongs to, as the header of a record; None: it belongs to none."""
        span = _current.get()
        if span is None:
            return None
        own = span.get_span_context()
        return f"00-{format_trace_id(own.trace_id)}-{format_span_id(own.span_id)}-{own.trace_flags:02x}"

    # Of batches: `headrace.broker.partition.batch_tracing.BatchTracer`

    def watch(self, _broker: Broker, topic: LiveTopic) -> None:
        """Trace the batches of this topic from now on."""
        topic.tracer = self

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
            self.continued(f"append {topic}", parents, told, began_ns=began_ns, failed=failed)
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
            self.continued(f"read {topic}", [parent], {**_place(topic, partition), "headrace.offset": offset})


def _place(topic: str, partition: int) -> dict[str, _Value]:
    return {
        "messaging.system": "headrace",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(partition),
    }


def _tell_status(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))


def _end(span: Span, failed: str) -> None:
    if failed:
        span.set_status(Status(StatusCode.ERROR, failed))
    span.end()
