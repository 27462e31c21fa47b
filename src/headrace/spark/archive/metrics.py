"""What an archive tells Prometheus: it runs on a machine of its own choice, so it answers scrapes itself."""

import contextlib
import ipaddress
import threading
import time
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Final

from headrace.metrics import families
from headrace.metrics.exposition import CONTENT_TYPE, Exposition, labels
from headrace.spark.errors import SparkError

if TYPE_CHECKING:
    from headrace.spark.archive.job import Archive, Progress, Standing

_MOST_SERIES: Final = 100
_MOST_LOOKS: Final = 10_000
_PATIENCE_S: Final = 5.0
"""How long a client may take over its request: one is answered at a time."""


class ArchiveMetrics:
    """What was counted, and what is looked up."""

    def __init__(self, topic: str, clock: Callable[[], float] = time.time) -> None:
        """Start at zero; `clock` tells seconds since 1970."""
        self._labels = labels(topic=topic)
        self._clock = clock
        self._lock = threading.Lock()
        self._records = self._bytes = self._files = self._batches = self._group_failures = 0
        self._version = 0
        self._look: Callable[[], Standing] | None = None
        self._looks: deque[tuple[float, int]] = deque(maxlen=_MOST_LOOKS)
        """When the log ended where, for ends that the table has not reached yet."""
        self._fresh: float | None = None

    def watch(self, archive: "Archive") -> None:
        """Look at this archive from now on."""
        self._look = archive.standing

    def took(self, progress: "Progress") -> None:
        """A batch is done."""
        with self._lock:
            self._records = progress.rows
            self._bytes += progress.batch_bytes
            self._files += progress.batch_files
            self._batches += 1
            self._group_failures += progress.group_failed
            self._version = progress.version

    def page(self) -> bytes:
        """The page."""
        standing: Standing | None = None
        if self._look is not None:
            # Where storage is away what was counted is told, and the rest is missing.
            with contextlib.suppress(SparkError):
                standing = self._look()
        with self._lock:
            page = Exposition(_MOST_SERIES)
            for family, value in (
                (families.ARCHIVE_RECORDS, self._records),
                (families.ARCHIVE_BYTES, self._bytes),
                (families.ARCHIVE_FILES, self._files),
                (families.ARCHIVE_BATCHES, self._batches),
                (families.ARCHIVE_GROUP_FAILURES, self._group_failures),
                (families.ARCHIVE_VERSION, self._version),
            ):
                page.sample(family, value, self._labels)
            if standing is not None:
                self._see(standing)
                page.sample(families.ARCHIVE_LAG, standing.end - standing.archived, self._labels)
            if self._fresh is not None:
                page.sample(families.ARCHIVE_FRESH, round(self._fresh, 3), self._labels)
            return page.finish()

    def _see(self, standing: "Standing") -> None:
        self._looks.append((self._clock(), standing.end))
        while self._looks and self._looks[0][1] <= standing.archived:
            self._fresh = self._looks.popleft()[0]


def serve(metrics: ArchiveMetrics, address: str) -> str:
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
            body = metrics.page() if found else b"This archive answers GET /metrics.\n"
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
