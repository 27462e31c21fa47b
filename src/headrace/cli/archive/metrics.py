"""What an archive tells Prometheus: it runs on a machine of its own choice, so it answers scrapes itself."""

import ipaddress
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final

from headrace.lakehouse.status.counters import Figures
from headrace.metrics import families
from headrace.metrics.exposition import CONTENT_TYPE, Exposition, labels

_MOST_SERIES: Final = 10_000
_PATIENCE_S: Final = 5.0
"""How long a client may take over its request: one is answered at a time."""


def page(figures: Figures) -> bytes:
    """The page: every family of every topic that is known."""
    made = Exposition(_MOST_SERIES)
    topics = {labels(topic=name): topic for name, topic in figures.topics().items()}
    for family, attribute in (
        (families.ARCHIVE_RECORDS, "records"),
        (families.ARCHIVE_BYTES, "size"),
        (families.ARCHIVE_FILES, "files"),
        (families.ARCHIVE_BATCHES, "batches"),
        (families.ARCHIVE_GROUP_FAILURES, "group_failures"),
        (families.ARCHIVE_VERSION, "version"),
        (families.ARCHIVE_LAG, "lag"),
        (families.ARCHIVE_FRESH, "fresh"),
    ):
        for label, topic in topics.items():
            value = getattr(topic, attribute)
            if value is not None:
                made.sample(family, round(value, 3), label)
    return made.finish()


def serve(figures: Figures, address: str) -> str:
    """Answer at a loopback address until the process ends; the address with its port.

    Raises:
        ValueError: it is no address of loopback. OSError: it is in use.
    """
    host, _, port = address.rpartition(":")
    plain = "127.0.0.1" if host == "localhost" else host.strip("[]")
    if not port.isdecimal() or not ipaddress.ip_address(plain).is_loopback:
        raise ValueError("expected HOST:PORT with an address of this machine alone, such as 127.0.0.1:9100")

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_S

        def do_GET(self) -> None:  # the library's name
            # A web page in a browser here could send requests under a name of its own (DNS rebinding).
            asked = self.headers.get("host", "").rpartition(":")[0].strip("[]")
            found = self.path == "/metrics" and asked in {plain, "localhost"}
            body = page(figures) if found else b"This archive answers GET /metrics.\n"
            self.send_response(200 if found else 404)
            self.send_header("content-type", CONTENT_TYPE if found else "text/plain")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's name
            pass

    server = HTTPServer((plain, int(port)), Handler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return f"{host}:{server.server_port}"
