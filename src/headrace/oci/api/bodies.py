"""Bodies of requests as they come in: how large they may be, and the whole of one."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from headrace.oci.api.errors import REQUEST_TOO_LARGE, OciError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Gone(Exception):
    """There is nobody to answer any more."""


def announced(headers: Mapping[str, str], most: int) -> int:
    """Bytes that a body has, or may have where its head does not tell. Raises OciError 400 when it is too large."""
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdecimal()):
        return most if "transfer-encoding" in headers else 0
    size = int(length[:20])
    if size > most:
        # A client that sends it all the same is heard out by the listener, so that the answer is not lost.
        raise OciError(400, REQUEST_TOO_LARGE)
    return size


async def whole(receive: Receive, most: int) -> bytes:
    """The whole body. Raises OciError 400 when it is larger than `most`; Gone."""
    chunks = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise Gone
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > most:
            raise OciError(400, REQUEST_TOO_LARGE)
        chunks.append(chunk)
        more = message.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
