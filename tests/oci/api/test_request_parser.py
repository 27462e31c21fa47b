"""Query, headers and bodies: what is wrong is said by its name on the wire."""

import contextlib
from datetime import UTC, datetime, timedelta, timezone
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.oci.api.group_requests import ms_of
from headrace.oci.api.request_parser import BodyReader, header_map, headers_of, query_of
from headrace.oci.errors import BAD_JSON, OciError
from headrace.oci.operations.put_messages import PutMessagesDetails
from headrace.records.fallback.messages import time_text


class Query(msgspec.Struct, rename="camel"):
    stream_cursor: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=10)] | None = None
    commit_on_get: bool | None = None


class Headers(msgspec.Struct, rename="kebab"):
    if_match: str | None = None


def refused(call: object, *arguments: object) -> OciError:
    assert callable(call)
    with pytest.raises(OciError) as caught:
        call(*arguments)
    assert caught.value.status == 400
    return caught.value


def test_a_query_is_read_with_its_types_and_unknown_parameters_are_passed_over() -> None:
    assert query_of(Query, b"streamCursor=a%2Fb%3D&limit=7&commitOnGet=false&x=1") == Query("a/b=", 7, False)
    assert query_of(Query, b"streamCursor=") == Query("")


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (b"", "MissingParameter", "Missing query parameter streamCursor"),
        (b"limit=1", "MissingParameter", "Missing query parameter streamCursor"),
        (
            b"streamCursor=a&limit=x",
            "InvalidParameter",
            "Invalid query parameter limit: Expected `int | null`, got `str`",
        ),
        (b"streamCursor=a&limit=0", "InvalidParameter", "Invalid query parameter limit: Expected `int` >= 1"),
        (b"streamCursor=a&limit=11", "InvalidParameter", "Invalid query parameter limit: Expected `int` <= 10"),
        (b"streamCursor=%ff", "InvalidParameter", "The query cannot be read"),
        (b"streamCursor=\xff", "InvalidParameter", "The query cannot be read"),
        (b"&".join([b"a=1"] * 200), "InvalidParameter", "The query cannot be read"),
    ],
)
def test_a_query_that_is_wrong(text: bytes, code: str, message: str) -> None:
    error = refused(query_of, Query, text)
    assert (error.code, error.message) == (code, message)


def test_headers_are_found_whatever_their_case() -> None:
    headers = header_map([(b"if-match", b"one"), (b"if-match", b"\xe4"), (b"other", b"x")])
    assert headers_of(Headers, headers) == Headers("ä")
    assert headers_of(Headers, {}) == Headers(None)


BODY = BodyReader(PutMessagesDetails)


@pytest.mark.parametrize("body", [b"", b"{", b'{"messages":[]}x', b"\xff", b'{"messages": nul}', b'{"messages":[' * 9])
def test_invalid_json_is_refused(body: bytes) -> None:
    error = refused(BODY.read, body)
    assert (error.code, error.message) == ("CannotParseRequest", BAD_JSON)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (b"{}", "MissingParameter", "Missing field messages"),
        (b'{"messages":[{"key":"YQ=="}]}', "MissingParameter", "Missing field messages[0].value"),
        (b'{"messages":{}}', "InvalidParameter", "Invalid field messages: Expected `array`, got `object`"),
        (b"[]", "InvalidParameter", "Invalid body: Expected `object`, got `array`"),
        (b"null", "InvalidParameter", "Invalid body: Expected `object`, got `null`"),
        (b'{"messages":[{"value":"YQ=="},{"value":7}]}', "InvalidParameter",
         "Invalid field messages[1].value: Expected `bytes`, got `int`"),
        (b'{"messages":[{"value":"Y"}]}', "InvalidParameter",
         "Invalid field messages[0].value: Invalid base64 encoded string"),
    ],
)  # fmt: skip
def test_a_body_of_another_shape_says_where(body: bytes, code: str, message: str) -> None:
    error = refused(BODY.read, body)
    assert (error.code, error.message) == (code, message)


def test_deep_nesting_is_not_the_end() -> None:
    for body in (b"[" * 200_000, b'{"messages":' * 200_000, b'{"x":' + b"[" * 200_000):
        assert refused(BODY.read, body).status == 400


@given(st.binary(max_size=200))
def test_any_bytes_are_a_body_or_an_error_of_ours(body: bytes) -> None:
    with contextlib.suppress(OciError):
        BODY.read(body)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2018-04-26T01:03:06Z", 1_524_704_586_000),
        ("2018-04-26T01:03:06.570Z", 1_524_704_586_570),
        ("2018-04-26T01:03:06.678901Z", 1_524_704_586_678),
        ("2018-04-26T01:03:06.051", 1_524_704_586_051),
        ("2018-04-26T03:03:06.051+02:00", 1_524_704_586_051),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)
def test_times_as_clients_send_them(text: str, ms: int) -> None:
    assert ms_of(msgspec.json.decode(msgspec.json.encode(text), type=datetime)) == ms


@given(
    st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))]))
)
def test_no_time_is_too_early_or_too_late(time: datetime) -> None:
    assert isinstance(time_text(ms_of(time)), str)
