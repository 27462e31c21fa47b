"""Answers of the HTTP listener's own, whoever was asked: JSON under a request id, as those of OCI's API."""

from uuid import uuid4

import msgspec
from starlette.types import Send

Headers = list[tuple[bytes, bytes]]


def own_answer(told: dict[str, str]) -> tuple[Headers, bytes]:
    """Return headers and body of this JSON object."""
    body = msgspec.json.encode(told)
    headers = [
        (b"opc-request-id", uuid4().hex.upper().encode()),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    return headers, body


def refusal(code: str, message: str) -> dict[str, str]:
    """What tells why a request is not served, in the words of OCI's API."""
    return {"code": code, "message": message}


async def send_own(send: Send, status: int, told: dict[str, str], *more: tuple[bytes, bytes]) -> None:
    """Answer an ASGI request; `more`: further headers."""
    headers, body = own_answer(told)
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *more]})
    await send({"type": "http.response.body", "body": body})
