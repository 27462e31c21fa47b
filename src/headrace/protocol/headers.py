"""Headers of requests and responses."""

import struct
from typing import Final

from headrace.protocol import wire
from headrace.protocol.errors import DecodeError, EncodeError
from headrace.protocol.messages import REQUESTS

_FIXED: Final = struct.Struct(">hhih")
_CORRELATION: Final = struct.Struct(">i")
_API_VERSIONS: Final = 18
_FLEXIBLE_FROM: Final = {key: cls.FLEXIBLE_FROM for key, cls in REQUESTS.items()}

_MOST_TAGS = 1_000
"""Maximum tagged fields of a request header. Clients send none today. To skip 1 MiB of them takes 140 ms."""


def _is_flexible(api_key: int, api_version: int) -> bool:
    flexible_from = _FLEXIBLE_FROM.get(api_key)
    return flexible_from is not None and api_version >= flexible_from


def decode_request_header(buffer: wire.Buffer, position: int) -> tuple[int, int, int, str | None, int]:
    """Return API key, version, correlation id, client id, and position of the body. Raises DecodeError.

    The client id is a plain nullable string also in header version 2 (KIP-511).
    """
    try:
        api_key, api_version, correlation_id, length = _FIXED.unpack_from(buffer, position)
        position += _FIXED.size
        client_id = None
        if length != -1:
            stop = position + length
            if length < 0 or stop > len(buffer):
                wire.bad_length("client_id", length, len(buffer) - position)
            client_id = str(buffer[position:stop], "utf-8")
            position = stop
        if _is_flexible(api_key, api_version):
            position = position + 1 if buffer[position] == 0 else _skip_tags(buffer, position)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"request header: {error}") from error
    return api_key, api_version, correlation_id, client_id, position


def _skip_tags(buffer: wire.Buffer, position: int) -> int:
    surplus = wire.read_varint(buffer, position)[0] - _MOST_TAGS
    if surplus > 0:
        wire.too_many("tagged fields of the request header", surplus)
    return wire.skip_tags(buffer, position)


def encode_request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Return the header of a request. Raises EncodeError."""
    try:
        name = None if client_id is None else client_id.encode()
        head = _FIXED.pack(api_key, api_version, correlation_id, -1 if name is None else len(name))
    except (struct.error, UnicodeEncodeError) as error:
        raise EncodeError(f"request header: {error}") from error
    return head + (name or b"") + (b"\0" if _is_flexible(api_key, api_version) else b"")


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """Return the header of a response.

    That of ApiVersions has no tagged fields, as the client may not know the server's versions (KIP-511).
    """
    if api_key != _API_VERSIONS and _is_flexible(api_key, api_version):
        return _CORRELATION.pack(correlation_id) + b"\0"
    return _CORRELATION.pack(correlation_id)


def decode_response_header(buffer: wire.Buffer, position: int, api_key: int, api_version: int) -> tuple[int, int]:
    """Return correlation id and position of the body. Raises DecodeError."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(buffer, position)
        position += _CORRELATION.size
        if api_key != _API_VERSIONS and _is_flexible(api_key, api_version):
            position = wire.skip_tags(buffer, position)
    except (struct.error, IndexError) as error:
        raise DecodeError(f"response header: {error}") from error
    return correlation_id, position
