"""Parse request bodies, queries and headers. Pure."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from headrace.oci.errors import BAD_JSON, REQUEST_TOO_LARGE, OciError, invalid

_AT = re.compile(r" - at `\$(.*)`$")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_WORDS = re.compile(r"Expected `str` matching regex '\^\(?((?:\[[A-Z][a-z]\]|\|)+)\)?\$'")
"""Matches a pattern of case-insensitive words, as `admin` builds it."""
_MOST_PARAMETERS = 100


def query_of(kind: type[Any], text: bytes) -> Any:
    """Return the query string as a struct. Raises OciError 400."""
    return _struct(kind, _parameters(text) if text else {}, "query parameter")


def _parameters(text: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS
        )
    except ValueError:  # also for invalid UTF-8
        raise invalid("The query cannot be read") from None
    return dict(pairs)


def headers_of(kind: type[Any], headers: Mapping[str, str]) -> Any:
    """Return headers as a struct. Raises OciError 400."""
    return _struct(kind, headers, "header")


def _struct(kind: type[Any], values: Mapping[str, str], what: str) -> Any:
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _refused(error, what) from None


class BodyReader:
    """Decodes bodies."""

    def __init__(self, kind: Any) -> None:
        self._decode = msgspec.json.Decoder(kind).decode

    def read(self, body: bytes) -> Any:
        """Decode a body. Raises OciError 400."""
        try:
            return self._decode(body)
        except msgspec.ValidationError as error:
            raise _refused(error, "field") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise OciError(400, BAD_JSON, "CannotParseRequest") from None


def _refused(error: msgspec.ValidationError, what: str) -> OciError:
    text = str(error)
    at = _AT.search(text)
    place = at[1].lstrip(".") if at else ""
    text = _AT.sub("", text)
    missing = _MISSING.fullmatch(text)
    if missing is not None:
        name = f"{place}.{missing[1]}" if place else missing[1]
        return OciError(400, f"Missing {what} {name}", "MissingParameter")
    words = _WORDS.fullmatch(text)
    if words is not None:
        text = "Expected " + ", ".join(re.sub(r"\[(.).\]", r"\1", words[1]).split("|"))
    return invalid(f"Invalid {what} {place}: {text}" if place else f"Invalid body: {text}")


def header_map(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by lower-case name. The last value counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Gone(Exception):
    """The client has disconnected."""


def announced_size(headers: Mapping[str, str], most: int) -> int:
    """Return the body's announced or maximum size in bytes. Raises OciError 400."""
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdecimal()):
        return most if "transfer-encoding" in headers else 0
    size = int(length[:20])
    if size > most:
        # The listener reads the body anyway, so that the client receives the response.
        raise OciError(400, REQUEST_TOO_LARGE)
    return size


async def read_body(receive: Receive, most: int) -> bytes:
    """Return the whole body. Raises OciError 400 if it is larger than `most`; Gone."""
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
