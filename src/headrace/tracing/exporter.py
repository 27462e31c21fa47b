"""Spans, sent as OTLP over HTTP. Needs `headrace[otel]`. Imported only if traces are enabled.

Spans continue traces of clients. Under a parent whose `traceparent` is not `sampled` they record nothing.
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
"""Maximum seconds that spans wait, and that sending takes."""
_read = TraceContextTextMapPropagator().extract
Value = str | int


class TraceExporter:
    """Makes spans and sends them from a thread. Its queue is bounded: excess spans are dropped."""

    def __init__(self, endpoint: str, service: str) -> None:
        """Connect to an OTLP/HTTP receiver. Spans go to `/v1/traces` below `endpoint`."""
        resource = Resource.create({"service.name": service, "service.version": __version__})
        self._provider = TracerProvider(resource=resource, sampler=ParentBased(ALWAYS_OFF))
        exporter = OTLPSpanExporter(endpoint.rstrip("/") + _PATH, timeout=_SEND_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=_SEND_S * 500))
        self._tracer = self._provider.get_tracer("headrace", __version__)

    def close(self) -> None:
        """Send the remaining spans. Blocks briefly."""
        self._provider.shutdown()

    def begun(
        self, name: str, parent: str, attributes: Mapping[str, Value] | None = None, *, began_ns: int | None = None
    ) -> Span:
        """Start a span in the trace of this `traceparent`. The caller ends it."""
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
        """Add one span, ended now, to each of the traces.

        Args:
            name: the operation.
            parents: `traceparent` of each trace.
            attributes: the span's attributes.
            began_ns: start, in ns since 1970. None: now.
            failed: reason of a failure, if any.
        """
        for parent in parents[:MOST]:
            span = self.begun(name, parent, attributes, began_ns=began_ns)
            if failed:
                span.set_status(Status(StatusCode.ERROR, failed))
            span.end()
