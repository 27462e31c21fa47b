"""An OpenTelemetry receiver: OTLP over HTTP, in this process."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Received(msgspec.Struct, frozen=True):
    """A span as it was sent."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    attributes: dict[str, str]


class Receiver:
    """What was received so far, and where."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Received] = []

    def take(self, request: ExportTraceServiceRequest) -> None:
        for each in request.resource_spans:
            service = next(one.value.string_value for one in each.resource.attributes if one.key == "service.name")
            for span in (span for scope in each.scope_spans for span in scope.spans):
                told = {one.key: one.value.string_value or str(one.value.int_value) for one in span.attributes}
                ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                self.spans.append(Received(service, span.name, *ids, told))

    def of(self, trace: str) -> list[Received]:
        return [span for span in self.spans if span.trace == trace]


@contextmanager
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            found.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Receiver(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
