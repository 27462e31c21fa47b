"""HTTP as an attacker speaks it: bytes on sockets, and the answers as far as they matter."""

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import msgspec

BASE = "/20180418"
COMPARTMENT = "ocid1.compartment.oc1..tests"
Headers = dict[str, str] | None
_WAIT_S = 60


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A server that is attacked, and what is there."""

    http: str
    """HOST:PORT."""
    kafka: str
    streams: dict[str, str]
    """OCIDs by what is in them."""
    cursors: dict[str, str]
    """Cursors that stay good, by what they are for."""
    open: bool
    """Whether requests pass without a signature."""

    def connect(self) -> socket.socket:
        """A connection; every wait ends after a minute with TimeoutError."""
        host, port = self.http.rsplit(":", 1)
        made = socket.create_connection((host, int(port)), _WAIT_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One request on a connection of its own; status and body."""
        with self.connect() as connection:
            # A refusal may come, and the connection be closed, before all of it is sent.
            send_what_it_takes(connection, request(method, path, body, {"connection": "close", **(headers or {})}))
            return answer_of(read_all(connection))

    def survives(self, method: str, path: str, body: bytes = b"", headers: Headers = None) -> None:
        """One request that may be refused, but not by a failure of the server's own; the answer has Oracle's form."""
        status, answer = self.ask(method, path, body, headers)
        assert status < 500 or status == 503, (status, method, path[:100], body[:100], answer[:300])
        if status >= 400:
            assert json.loads(answer).keys() == {"code", "message"}, answer[:300]
            assert len(answer) < 10_000, answer[:300]
            assert status == 401 or self.open or "20180418" not in path or status in {400, 404, 405}, (
                status,
                path[:100],
            )

    def done(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of a request that must pass."""
        status, answer = self.ask(method, BASE + path, b"" if body is None else json.dumps(body).encode())
        assert status == 200, (status, answer)
        return json.loads(answer)

    def cursor(self, stream: str, **details: Any) -> str:
        """A cursor of partition 0 of a stream that is named by what is in it."""
        details = {"partition": "0", "type": "TRIM_HORIZON", **details}
        return str(self.done("POST", f"/streams/{self.streams[stream]}/cursors", details)["value"])


def request(method: str, path: str, body: bytes = b"", headers: Headers = None) -> bytes:
    """The bytes of a request."""
    told = {"host": "localhost", "content-length": str(len(body)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server closes, or resets, the connection."""
    received = bytearray()
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(1 << 20):
            received += chunk
    return bytes(received)


def answer_of(received: bytes) -> tuple[int, bytes]:
    """Status and body of the first answer; (0, b"") when there is none."""
    head, _, body = received.partition(b"\r\n\r\n")
    return (int(head.split()[1]), body) if head else (0, b"")


@contextlib.contextmanager
def many(target: Target, count: int) -> Iterator[list[socket.socket]]:
    """So many connections at a time."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(target.connect()) for _ in range(count)]


def send_what_it_takes(connection: socket.socket, data: bytes) -> None:
    """Send until the server closes the connection."""
    with contextlib.suppress(ConnectionError):
        connection.sendall(data)
