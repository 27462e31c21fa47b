"""JSON responses of the HTTP listener, as in OCI's API."""

from uuid import uuid4

import msgspec
from starlette.types import Send

Headers = list[tuple[bytes, bytes]]


def own_answer(told: dict[str, str]) -> tuple[Headers, bytes]:
    """Return headers and body of a JSON response."""
    body = msgspec.json.encode(told)
    headers = [
        (b"opc-request-id", uuid4().hex.upper().encode()),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    return headers, body


def refusal(code: str, message: str) -> dict[str, str]:
    """Return an error in the form of OCI's API."""
    return {"code": code, "message": message}


async def send_own(send: Send, status: int, told: dict[str, str], *more: tuple[bytes, bytes]) -> None:
    """Send a JSON response with `more` headers."""
    headers, body = own_answer(told)
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *more]})
    await send({"type": "http.response.body", "body": body})
