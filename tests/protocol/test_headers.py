"""Headers against kio, and where they differ from API to API."""

import io

import kio.serial
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeaderV2
from kio.static.primitive import i16, i32

from headrace.protocol.errors import DecodeError, EncodeError
from headrace.protocol.headers import (
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from headrace.protocol.messages import REQUESTS, RESPONSES
from headrace.protocol.wire import varint

INT32 = st.integers(-(2**31), 2**31 - 1)


@given(st.sampled_from(sorted(REQUESTS)), st.data(), INT32, st.one_of(st.none(), st.text(max_size=200)))
def test_request_headers_agree_with_kio(key: int, data: st.DataObject, correlation: int, client: str | None) -> None:
    version = data.draw(st.integers(*REQUESTS[key].VERSIONS))
    flexible = version >= REQUESTS[key].FLEXIBLE_FROM
    kio_class = RequestHeaderV2 if flexible else RequestHeaderV1
    theirs = io.BytesIO()
    kio.serial.entity_writer(kio_class)(
        theirs,
        kio_class(
            request_api_key=i16(key),
            request_api_version=i16(version),
            correlation_id=i32(correlation),
            client_id=client,
        ),
    )

    ours = encode_request_header(key, version, correlation, client)

    assert ours == theirs.getvalue()
    assert decode_request_header(b"xx" + ours + b"body", 2) == (key, version, correlation, client, 2 + len(ours))
    assert decode_request_header(memoryview(ours), 0) == (key, version, correlation, client, len(ours))
    for stop in range(len(ours)):
        with pytest.raises(DecodeError):
            decode_request_header(ours[:stop], 0)


@given(st.binary(max_size=40))
def test_request_headers_survive_noise(noise: bytes) -> None:
    try:
        decode_request_header(noise, 0)
    except DecodeError:
        return


def test_skips_tagged_fields_of_headers() -> None:
    header = encode_request_header(3, 9, 5, "me")[:-1] + b"\x01\x07\x02ab"
    assert decode_request_header(header, 0) == (3, 9, 5, "me", len(header))
    assert decode_response_header(b"\0\0\0\x05\x01\x07\x02ab", 0, 3, 9) == (5, 9)
    with pytest.raises(DecodeError):
        decode_response_header(b"\0\0\0\x05\x01\x07\x02a", 0, 3, 9)


def test_a_header_of_very_many_tagged_fields_is_refused() -> None:
    header = encode_request_header(3, 9, 5, "me")[:-1]
    enough = header + varint(1_000) + b"\x07\0" * 1_000
    assert decode_request_header(enough, 0) == (3, 9, 5, "me", len(enough))
    with pytest.raises(DecodeError, match="tagged fields of the request header: 1 more elements"):
        decode_request_header(header + varint(1_001) + b"\x07\0" * 1_001, 0)


def test_unknown_apis_have_plain_headers() -> None:
    """Enough of them can be read to say which API was asked for."""
    assert decode_request_header(b"\x03\xe7\0\x09\0\0\0\x01\xff\xff", 0) == (999, 9, 1, None, 10)


@pytest.mark.parametrize("key", sorted(RESPONSES))
def test_response_headers_follow_the_body(key: int) -> None:
    """Tagged fields come with a flexible body, but never in answers to ApiVersions (KIP-511)."""
    low, high = RESPONSES[key].VERSIONS
    for version in range(low, high + 1):
        header = encode_response_header(key, version, 258)
        flexible = key != 18 and version >= RESPONSES[key].FLEXIBLE_FROM
        assert header == b"\0\0\x01\x02" + (b"\0" if flexible else b"")
        assert decode_response_header(header, 0, key, version) == (258, len(header))


def test_future_api_versions_requests_can_be_read() -> None:
    """The version a server cannot speak is known from the header, which has tagged fields since version 3."""
    header = b"\0\x12\0\x63\0\0\0\x01\0\x01c\0"
    assert decode_request_header(header, 0) == (18, 99, 1, "c", len(header))


def test_refuses_what_does_not_fit() -> None:
    for client in ("x" * 40_000, "\ud800"):
        with pytest.raises(EncodeError):
            encode_request_header(3, 9, 5, client)
