"""HTTP/1.1 client for the listeners of other brokers, with persistent connections."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import msgspec

_MOST_KEPT = 32
"""Maximum idle connections to a broker."""
_MOST_BODY = 256 << 20
_CONNECT_S = 2.0

Tls = Callable[[], ssl.SSLContext]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Lost(Exception):
    """A broker is unreachable or did not respond; `sent`: it may have handled the request."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class PeerAnswer(msgspec.Struct, frozen=True):
    """A response, with header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connections:
    """Connections to brokers."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._idle: dict[str, list[Streams]] = {}

    async def ask(
        self, url: str, method: str, target: bytes, headers: Mapping[str, str], body: bytes | bytearray
    ) -> PeerAnswer:
        """Send one request. A cancellation closes its connection. Raises Lost."""
        try:
            reader, writer = await self._connection(url)
        except (OSError, TimeoutError) as error:
            raise Lost(f"{url} cannot be reached: {str(error) or 'it takes too long'}", sent=False) from error
        try:
            head = [b"%b %b HTTP/1.1\r\nhost: localhost\r\n" % (method.encode(), target)]
            head += [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()]
            head.append(b"content-length: %d\r\n\r\n" % len(body))
            writer.write(b"".join(head))
            if body:
                writer.write(body)
            answer = await _answer(reader)
        except (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
            writer.transport.abort()
            raise Lost(f"{url} went away before it had answered", sent=True) from error
        except BaseException:
            writer.transport.abort()
            raise
        if answer.headers.get("connection", "").lower() == "close":
            writer.close()
        else:
            self._keep(url, reader, writer)
        return answer

    async def _connection(self, url: str) -> Streams:
        idle = self._idle.get(url, [])
        while idle:
            reader, writer = idle.pop()
            if not (reader.at_eof() or writer.is_closing()):
                return reader, writer
            writer.close()
        return await self.open(url)

    async def open(self, url: str) -> Streams:
        """Open a connection. Raises OSError, TimeoutError."""
        place = urlsplit(url)
        if not place.hostname:
            raise OSError("no URL")
        async with asyncio.timeout(_CONNECT_S):
            tls = self._tls() if place.scheme == "https" else None
            return await asyncio.open_connection(place.hostname, place.port, ssl=tls)

    def _keep(self, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        idle = self._idle.setdefault(url, [])
        if len(idle) < _MOST_KEPT:
            idle.append((reader, writer))
        else:
            writer.close()

    def retain(self, urls: set[str]) -> None:
        """Close idle connections to all other URLs."""
        for url in self._idle.keys() - urls:
            for _, writer in self._idle.pop(url):
                writer.close()

    def close(self) -> None:
        """Close all idle connections."""
        self.retain(set())


async def _answer(reader: asyncio.StreamReader) -> PeerAnswer:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ", 2)[1])
    headers = {}
    for line in lines[1:-2]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    size = int(headers.get("content-length", "0"))
    if not 0 <= size <= _MOST_BODY:
        raise ValueError(f"a body of {size} bytes")
    return PeerAnswer(status, headers, await reader.readexactly(size))
