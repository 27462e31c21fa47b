"""A record's headers as the text of their field in an entry of a Redis Stream, and back; `_header_text.c` does it in C.

A JSON array of `[name, value]` in order. Both are text, or `{"base64": "..."}` where they are no UTF-8; a value may be
null.
"""

import base64
import json

ByteHeaders = tuple[tuple[bytes, bytes | None], ...]


def encode_headers(headers: ByteHeaders) -> bytes:
    """Headers as the text of their field."""
    return to_json([[as_text(name), None if value is None else as_text(value)] for name, value in headers])


def decode_headers(text: bytes) -> ByteHeaders | None:
    """Headers from the text of their field, an object of names and texts too; None when it is no such text."""
    try:
        found = json.loads(text)
        pairs = list(found.items()) if isinstance(found, dict) else found
        headers = []
        for name, value in pairs:
            known = _bytes(name)
            if known is None:
                return None
            headers.append((known, None if value is None else _bytes_or_fail(value)))
    except (ValueError, TypeError, RecursionError):
        return None
    return tuple(headers)


def to_json(value: object) -> bytes:
    """JSON in UTF-8, as short as it can be."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def as_text(data: bytes) -> str | dict[str, str]:
    """Bytes as JSON has them."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(value: object) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"], validate=True)
    return None


def _bytes_or_fail(value: object) -> bytes:
    found = _bytes(value)
    if found is None:
        raise ValueError(f"a header's value is text, not {value!r}")
    return found
