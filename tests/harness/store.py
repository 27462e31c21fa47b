"""An object store with fault injection: moto's S3 in a separate process, with a proxy.

As a program it prints its URL. POST to `/_fault` adds faults, DELETE removes them.
"""

import contextlib
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any

BUCKET = "lake"
_DENIED = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>'
)


class ObjectStore:
    """The store as tests know it."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    @property
    def options(self) -> dict[str, str]:
        """delta-rs' storage options."""
        key = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return {"aws_endpoint_url": self.endpoint, "aws_region": "us-east-1", "aws_allow_http": "true", **key}

    def fail(self, method: str, part: str, kind: str, times: int = 1) -> None:
        """Let the next requests of that method whose path contains `part` fail.

        `kind`: `deny` (403), `error` (500, nothing done), `lose` (done, and answered with 500).
        """
        self._send("POST", "/_fault", json.dumps([method, part, kind, times]).encode())

    def heal(self) -> None:
        """No request fails any more."""
        self._send("DELETE", "/_fault", b"")

    def make(self, bucket: str) -> None:
        """Create a bucket."""
        self._send("PUT", f"/{bucket}", b"")

    def _send(self, method: str, path: str, body: bytes) -> None:
        request = urllib.request.Request(self.endpoint + path, body, method=method)
        urllib.request.urlopen(request, timeout=60).close()


@contextlib.contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A store with a bucket `lake`."""
    command = [sys.executable, "-m", "tests.harness.store"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            store = ObjectStore(process.stdout.readline().strip())
            store.make(BUCKET)
            yield store
        finally:
            process.kill()


class _Faults:
    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._faults: list[list[Any]] = []
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/_fault":
            with self._lock:
                if environ["REQUEST_METHOD"] == "DELETE":
                    self._faults.clear()
                else:
                    self._faults.append(json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
            start_response("204 No Content", [])
            return []
        kind = self._fault(environ["REQUEST_METHOD"], environ["PATH_INFO"])
        if kind == "deny":
            start_response("403 Forbidden", [("content-type", "application/xml")])
            return [_DENIED]
        if kind == "lose":
            list(self._app(environ, lambda *_: None))
        if kind in {"lose", "error"}:
            start_response("500 Internal Server Error", [("content-type", "text/plain")])
            return [b"the store fails"]
        return self._app(environ, start_response)

    def _fault(self, method: str, path: str) -> str | None:
        with self._lock:
            for fault in self._faults:
                if fault[0] == method and fault[1] in path and fault[3] > 0:
                    fault[3] -= 1
                    return str(fault[2])
        return None


def main() -> None:
    # Only in this process, whose start delays no test.
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app  # noqa: PLC0415
    from werkzeug.serving import make_server  # noqa: PLC0415

    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, _Faults(app), threaded=True)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
