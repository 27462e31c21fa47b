"""The load generator of the OCI API: HTTP over bare sockets, several connections in one process, or Oracle's SDK.

Requests are written beforehand as far as they can be, so that the client costs little. Each answer is looked at: that
it is 200, that no entry failed, and how many messages it holds.
"""

import base64
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from bench.load import LIMIT_S, Delays, LoadFailed, Span, begin
from bench.payloads import values

_BASE = "/20180418/streams"
_RECEIVE = 1 << 20
_WARM_UP_S = 1.0


class Put(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """PutMessages of `batch` messages, one request after the other on each connection."""

    host: str
    port: int
    stream: str
    connections: int
    requests: int
    batch: int
    size: int


class Get(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """GetMessages of `batch` messages from the beginning: a connection reads a partition, or is a group's instance."""

    host: str
    port: int
    stream: str
    connections: int
    requests: int
    batch: int
    group: bool


class Paced(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """PutMessages of one message every 1/rate s, connections in turns: how long after it was due each answer came."""

    host: str
    port: int
    stream: str
    connections: int
    requests: int
    size: int
    rate: int


class Sdk(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The same as Put or Get through Oracle's SDK, one request after the other."""

    host: str
    port: int
    stream: str
    put: bool
    requests: int
    batch: int
    size: int


Task = Put | Get | Paced | Sdk


class Link:
    """A connection that has one request under way at a time."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray(_RECEIVE)
        self.filled = 0
        self.head_end = 0
        self.wanted = 0

    def send(self, request: bytes) -> None:
        self.filled = self.wanted = 0
        self.socket.sendall(request)

    def receive(self) -> bool:
        """Take what has come; whether the answer is whole. Raises LoadFailed unless it is 200."""
        if self.filled == len(self.buffer):
            self.buffer.extend(bytes(len(self.buffer)))
        count = self.socket.recv_into(memoryview(self.buffer)[self.filled :])
        if not count:
            raise LoadFailed("the server closed a connection")
        self.filled += count
        if not self.wanted:
            end = self.buffer.find(b"\r\n\r\n", 0, self.filled)
            if end < 0:
                return False
            if not self.buffer.startswith(b"HTTP/1.1 200"):
                raise LoadFailed(bytes(self.buffer[: self.filled]).decode("latin-1"))
            self.head_end = end + 4
            self.wanted = self.head_end + int(self.header(b"content-length"))
        return self.filled >= self.wanted

    def header(self, name: bytes) -> bytes:
        at = self.buffer.index(b"\r\n" + name + b": ", 0, self.head_end) + len(name) + 4
        return bytes(self.buffer[at : self.buffer.index(b"\r\n", at)])

    def count(self, text: bytes) -> int:
        """How often a text is in the body."""
        return self.buffer.count(text, self.head_end, self.wanted)

    def body(self) -> bytes:
        return bytes(self.buffer[self.head_end : self.wanted])

    def call(self, request: bytes) -> bytes:
        """One request to its end."""
        self.send(request)
        while not self.receive():
            pass
        return self.body()


def request(task: Task, method: str, path: str, body: bytes = b"") -> bytes:
    """A request as bytes."""
    head = f"{method} {_BASE}/{task.stream}/{path} HTTP/1.1\r\nhost: {task.host}:{task.port}\r\n"
    if method == "POST":
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


def _encoded(size: int, batch: int, number: int) -> list[bytes]:
    """Bodies of PutMessages."""
    pool = [base64.b64encode(value).decode() for value in values(size, batch * number)]
    return [
        msgspec.json.encode(
            {
                "messages": [
                    {"key": base64.b64encode(b"key-%d" % place).decode(), "value": value}
                    for place, value in enumerate(pool[at : at + batch])
                ]
            }
        )
        for at in range(0, len(pool), batch)
    ]


def _puts(task: Put | Paced, batch: int) -> list[bytes]:
    bodies = _encoded(task.size, batch, max(2, min(64, (4 << 20) // (batch * task.size))))
    return [request(task, "POST", "messages", body) for body in bodies]


def _check_put(link: Link, batch: int) -> None:
    if not link.body().startswith(b'{"failures":0,') or link.count(b'"offset":') != batch:
        raise LoadFailed(link.body()[:300].decode())


def _drive(task: Put | Get, first: Callable[[int], bytes], following: Callable[[Link, int], bytes | None]) -> Span:
    """Keep one request under way on each connection until `following` has none for it."""
    links = [Link(task.host, task.port) for _ in range(task.connections)]
    with selectors.DefaultSelector() as selector:
        for number, link in enumerate(links):
            selector.register(link.socket, selectors.EVENT_READ, (link, number))
        end = time.monotonic() + LIMIT_S
        began = begin()
        for number, link in enumerate(links):
            link.send(first(number))
        left = len(links)
        while left:
            for key, _ in selector.select(1):
                link, number = key.data
                if link.receive():
                    request = following(link, number)
                    if request is None:
                        left -= 1
                        selector.unregister(link.socket)
                    else:
                        link.send(request)
            if time.monotonic() > end:
                raise LoadFailed(f"not done after {LIMIT_S:.0f} s")
        span = Span(began, time.monotonic_ns(), 0)
    for link in links:
        link.socket.close()
    return span


def _put(task: Put) -> Span:
    requests = _puts(task, task.batch)
    sent = 0

    def next_one() -> bytes | None:
        nonlocal sent
        sent += 1
        return requests[sent % len(requests)] if sent <= task.requests else None

    def following(link: Link, _: int) -> bytes | None:
        _check_put(link, task.batch)
        return next_one()

    span = _drive(task, lambda _: next_one() or b"", following)
    return Span(span.began, span.ended, task.requests * task.batch)


def _get(task: Get) -> Span:
    link = Link(task.host, task.port)
    cursors = []
    for number in range(task.connections):
        if task.group:
            asked = {"groupName": "bench", "instanceName": str(number), "type": "TRIM_HORIZON"}
            call = request(task, "POST", "groupCursors", msgspec.json.encode(asked))
        else:
            asked = {"partition": str(number), "type": "TRIM_HORIZON"}
            call = request(task, "POST", "cursors", msgspec.json.encode(asked))
        cursors.append(msgspec.json.decode(link.call(call))["value"])
    before, _, after = request(task, "GET", f"messages?limit={task.batch}&cursor=@").partition(b"@")
    received = [0] * task.connections
    answers = 0

    def following(link: Link, number: int) -> bytes | None:
        nonlocal answers
        count = link.count(b'"offset":')
        received[number] += count
        answers += 1
        done = (count == 0 and not task.group) or answers + task.connections > task.requests
        return None if done else before + link.header(b"opc-next-cursor") + after

    span = _drive(task, lambda number: before + cursors[number].encode() + after, following)
    return Span(span.began, span.ended, sum(received))


def _paced(task: Paced) -> Delays:
    requests = _puts(task, 1)
    links = [Link(task.host, task.port) for _ in range(task.connections)]
    idle = list(links)
    due_of: dict[Link, int] = {}
    delays: list[int] = []
    interval = 1e9 / task.rate
    with selectors.DefaultSelector() as selector:
        for link in links:
            selector.register(link.socket, selectors.EVENT_READ, link)
        end = time.monotonic() + LIMIT_S
        began = begin()
        sent = 0
        while len(delays) < task.requests:
            now = time.monotonic_ns()
            while sent < task.requests and idle and (due := began + int(sent * interval)) <= now:
                link = idle.pop()
                due_of[link] = due
                link.send(requests[sent % len(requests)])
                sent += 1
            # When every connection is busy a request waits, and its delay grows: it counts from when it was due.
            wait = max(0.0, (began + sent * interval - now) / 1e9) if idle and sent < task.requests else 1.0
            for key, _ in selector.select(wait):
                link = key.data
                if link.receive():
                    _check_put(link, 1)
                    delays.append(time.monotonic_ns() - due_of[link])
                    idle.append(link)
            if time.monotonic() > end:
                raise LoadFailed(f"not done after {LIMIT_S:.0f} s")
    counted = delays[int(min(_WARM_UP_S * task.rate, len(delays) / 2)) :]
    cuts = statistics.quantiles(counted, n=100, method="inclusive")
    return Delays(p50=cuts[49] / 1e6, p99=cuts[98] / 1e6, longest=max(counted) / 1e6)


def _sdk(task: Sdk) -> Span:
    import oci  # noqa: PLC0415  # takes a second to load
    from headrace.testing.oci import OciClients  # noqa: PLC0415

    client = OciClients(f"http://{task.host}:{task.port}").stream_client()
    models = oci.streaming.models
    if task.put:
        pool = values(task.size, task.batch)
        details = models.PutMessagesDetails(
            messages=[
                models.PutMessagesDetailsEntry(value=base64.b64encode(value).decode(), key="a2V5") for value in pool
            ]
        )
        began = begin()
        for _ in range(task.requests):
            if client.put_messages(task.stream, details).data.failures:
                raise LoadFailed("messages failed")
        return Span(began, time.monotonic_ns(), task.requests * task.batch)
    place = models.CreateCursorDetails(partition="0", type="TRIM_HORIZON")
    cursor = client.create_cursor(task.stream, place).data.value
    began = begin()
    received = 0
    for _ in range(task.requests):
        answer = client.get_messages(task.stream, cursor, limit=task.batch)
        cursor = answer.headers["opc-next-cursor"]
        received += len(answer.data)
    return Span(began, time.monotonic_ns(), received)


def main() -> None:
    task: Task = msgspec.json.decode(sys.argv[1], type=Task)
    result: Any
    try:
        match task:
            case Put():
                result = _put(task)
            case Get():
                result = _get(task)
            case Paced():
                result = _paced(task)
            case Sdk():
                result = _sdk(task)
    except LoadFailed as error:
        raise SystemExit(str(error)) from None
    print(msgspec.json.encode(result).decode(), flush=True)


if __name__ == "__main__":
    main()
