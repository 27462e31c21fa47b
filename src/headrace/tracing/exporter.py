"""Spans, made and sent as OTLP over HTTP. Needs `headrace[otel]`; imported only where traces are asked for.

Traces that clients began are continued, none are begun: a parent whose `traceparent` does not say `sampled` has spans
that record nothing.
"""

from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace import __version__
from headrace.records.traceparents import MOST, NAME

_PATH = "/v1/traces"
_SEND_S = 2
"""Spans wait at most this long, and sending them takes no longer."""
_read = TraceContextTextMapPropagator().extract
Value = str | int


class TraceExporter:
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

    def begun(
        self, name: str, parent: str, attributes: Mapping[str, Value] | None = None, *, began_ns: int | None = None
    ) -> Span:
        """A span that goes on until its `end`, in the trace of this `traceparent`."""
        return self._tracer.start_span(
            name, _read({NAME: parent}), kind=SpanKind.SERVER, attributes=attributes, start_time=began_ns
        )

    def continued(
        self,
        name: str,
        parents: Sequence[str],
        attributes: Mapping[str, Value],
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
            span = self.begun(name, parent, attributes, began_ns=began_ns)
            if failed:
                span.set_status(Status(StatusCode.ERROR, failed))
            span.end()
