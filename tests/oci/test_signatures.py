"""What an Authorization header may look like, what has to be signed, and that garbage is only ever BadSignature."""

import base64
import hashlib
import itertools
import json
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.oci import signatures
from headrace.oci.signatures import ApiKey, BadSignature, ResourcePrincipal, SecurityToken

FINGERPRINT = ":".join(f"{number:02x}" for number in range(16))
TENANCY = "ocid1.tenancy.oc1..aaaa"
USER = "ocid1.user.oc1..bbbb"
KEY_ID = f"{TENANCY}/{USER}/{FINGERPRINT}"
PARAMETERS = {
    "version": "1",
    "keyId": KEY_ID,
    "algorithm": "rsa-sha256",
    "headers": "date (request-target) host",
    "signature": "c2lnbmVk",
}
EMPTY_SHA = b"47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
ALL = {
    "date": b"Thu, 05 Jan 2023 21:31:40 GMT",
    "host": b"127.0.0.1:8080",
    "content-length": b"0",
    "content-type": b"application/json",
    "x-content-sha256": EMPTY_SHA,
}


def header(changes: dict[str, str | None] | None = None, order: tuple[str, ...] = tuple(PARAMETERS)) -> str:
    values = PARAMETERS | (changes or {})
    return "Signature " + ",".join(f'{name}="{values[name]}"' for name in order if values[name] is not None)


def test_the_parameters_may_come_in_any_order() -> None:
    read = {signatures.parse(header(order=order)) for order in itertools.permutations(PARAMETERS)}
    assert len(read) == 1
    signature = read.pop()
    assert signature.key_id == ApiKey(TENANCY, USER, FINGERPRINT)
    assert signature.names == ("date", "(request-target)", "host")
    assert signature.value == b"signed"


@pytest.mark.parametrize(
    "written",
    [
        header().replace(",", ", "),
        header().replace("Signature ", "signature   "),
        header({"version": None}),
        header() + ",",
        header() + ',opc="more"',
        header({"algorithm": "RSA-SHA256"}),
        "  " + header() + "  ",
        header({"headers": "Date (Request-Target) HOST"}),
    ],
)
def test_what_means_the_same_is_read_the_same(written: str) -> None:
    assert signatures.parse(written) == signatures.parse(header())


def test_the_typescript_sdk_writes_names_in_mixed_case() -> None:
    names = "x-date (request-target) host Content-Type Content-Length x-content-sha256"
    assert signatures.parse(header({"headers": names})).names == tuple(names.lower().split())


@pytest.mark.parametrize(
    "written",
    [
        "",
        "Signature",
        "Signature ",
        "Basic dXNlcjpwYXNz",
        "Bearer a.b.c",
        header({"signature": "not base64!"}),
        header({"signature": ""}),
        header({"algorithm": "hmac-sha256"}),
        header({"version": "2"}),
        header({"headers": ""}),
        header({"headers": "date  host"}),
        header({"headers": "date (request-target) host " + " ".join(f"x-{number}" for number in range(300))}),
        header({"headers": "date date (request-target) host"}),
        header({"headers": "date\t(request-target) host"}),
        header({"headers": "(created) (request-target) host"}),
        header({"keyId": ""}),
        header() + ',version="1"',
        header()[:-1],
        header() + " trailing",
        header().replace('"', "'"),
        header() + ',filler="' + "x" * 16_384 + '"',
        *(header({name: None}) for name in ("keyId", "algorithm", "headers", "signature")),
    ],
)
def test_what_is_no_signature_is_refused(written: str) -> None:
    with pytest.raises(BadSignature):
        signatures.parse(written)


@given(st.text() | st.text(alphabet='Signature "=,keyIdheaders/()').map("Signature ".__add__))
def test_garbage_is_only_ever_a_bad_signature(text: str) -> None:
    with pytest.raises(BadSignature):
        signatures.parse(text)


@given(
    st.fixed_dictionaries({}, optional={name: st.text(st.characters(exclude_characters='"')) for name in PARAMETERS})
)
def test_garbage_in_the_parameters_is_read_or_refused(changes: dict[str, str]) -> None:
    try:
        signature = signatures.parse(header(dict(changes)))
    except BadSignature:
        return
    assert signature.value
    assert signature.names


# Key ids


def jwt(claims: object) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (KEY_ID, ApiKey(TENANCY, USER, FINGERPRINT)),
        (KEY_ID.upper().replace("OCID1", "ocid1"), ApiKey(TENANCY.upper().replace("OCID1", "ocid1"),
                                                          USER.upper().replace("OCID1", "ocid1"), FINGERPRINT)),
        ("ST$a.b.c", SecurityToken("", "")),
        ("ST$opaque", SecurityToken("", "")),
        ("ST$" + jwt({"tenant": "t", "sub": "u"}), SecurityToken("t", "u")),
        ("ST$" + jwt({"opc-tenant": "t", "sub": 5}), SecurityToken("t", "")),
        ("ST$" + jwt(["tenant"]), SecurityToken("", "")),
        ("resource/v2.1/ocid1.fnfunc.oc1..x", ResourcePrincipal("", "ocid1.fnfunc.oc1..x")),
        ("resource/v2.1.1/ocid1.tenancy.oc1..t/ocid1.instance.oc1..i",
         ResourcePrincipal("ocid1.tenancy.oc1..t", "ocid1.instance.oc1..i")),
    ],
)  # fmt: skip
def test_forms_of_key_ids(text: str, expected: signatures.KeyId) -> None:
    assert signatures.parse_key_id(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ST$",
        "ST$a b",
        "ST$\u00e9",
        "a/b",
        f"a/b/{FINGERPRINT}/c",
        f"../../{FINGERPRINT}",
        f"../b/{FINGERPRINT}",
        f"a/./{FINGERPRINT}",
        f"a/.hidden/{FINGERPRINT}",
        f"a//{FINGERPRINT}",
        f"/etc/{FINGERPRINT}",
        f"a\\..\\b/c/{FINGERPRINT}",
        f"a\0/b/{FINGERPRINT}",
        f"{'a' * 256}/b/{FINGERPRINT}",
        "a/b/..",
        f"a/b/{FINGERPRINT[:-3]}",
        "a/b/" + FINGERPRINT.replace(":", "-"),
        "resource/v2.1",
        "resource/v2.1/",
        "resource/v2.1.1/a/b/c",
        "resource/other/x",
    ],
)
def test_other_key_ids_are_refused(text: str) -> None:
    with pytest.raises(BadSignature):
        signatures.parse_key_id(text)


@given(st.text())
def test_a_garbage_token_identifies_no_user(text: str) -> None:
    try:
        assert isinstance(signatures.parse_key_id("ST$a." + text + ".c"), SecurityToken)
    except BadSignature:
        assert not text.isascii() or any(letter.isspace() for letter in text)


def test_a_deeply_nested_token_identifies_no_user() -> None:
    body = base64.urlsafe_b64encode(b"[" * 9_000).decode()
    assert signatures.parse_key_id(f"ST$a.{body}.c") == SecurityToken("", "")


# What is signed


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD"])
def test_a_request_without_a_body_signs_date_target_and_host(method: str) -> None:
    signatures.check_coverage(("date", "(request-target)", "host"), method, ALL, signs_body=True)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "post"])
def test_a_request_with_a_body_signs_the_headers_about_it_too(method: str) -> None:
    names = ("date", "(request-target)", "host", "content-length", "content-type", "x-content-sha256")
    signatures.check_coverage(names, method, ALL, signs_body=True)
    for missing in names:
        with pytest.raises(BadSignature, match="not signed"):
            signatures.check_coverage(tuple(name for name in names if name != missing), method, ALL, signs_body=True)


def test_put_messages_leaves_the_body_out() -> None:
    signatures.check_coverage(("date", "(request-target)", "host"), "POST", ALL, signs_body=False)


def test_a_header_that_was_signed_has_to_be_there() -> None:
    with pytest.raises(BadSignature, match="opc-obo-token was signed and is not there"):
        signatures.check_coverage(("date", "(request-target)", "host", "opc-obo-token"), "GET", ALL, signs_body=True)


def test_x_date_does_for_date() -> None:
    headers = {"x-date": ALL["date"], "host": b"h"}
    signatures.check_coverage(("x-date", "(request-target)", "host"), "GET", headers, signs_body=True)


def test_the_signing_string_is_one_line_for_each_name_in_the_order_of_the_list() -> None:
    names = ("host", "(request-target)", "x-content-sha256", "date")
    assert signatures.signing_string(names, "POST", b"//20180418/streams?a=%2F&b=", ALL) == (
        b"host: 127.0.0.1:8080\n(request-target): post //20180418/streams?a=%2F&b=\n"
        b"x-content-sha256: " + EMPTY_SHA + b"\ndate: Thu, 05 Jan 2023 21:31:40 GMT"
    )


def test_headers_are_found_in_any_case_and_joined_when_they_repeat() -> None:
    pairs = [(b"Host", b" h "), (b"X-Date", b"d"), (b"opc-thing", b"1"), (b"Opc-Thing", b"2")]
    assert signatures.headers_of(pairs) == {"host": b"h", "x-date": b"d", "opc-thing": b"1, 2"}


# Dates and bodies


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)))
def test_dates_are_those_of_http(moment: datetime) -> None:
    moment = moment.replace(microsecond=0, tzinfo=UTC)
    assert signatures.date_ms(format_datetime(moment, usegmt=True)) == int(moment.timestamp()) * 1000


@pytest.mark.parametrize(
    "text",
    ["", "now", "2023-01-05T21:31:40Z", "Thu, 05 Foo 2023 21:31:40 GMT", "Thu, 05 Jan 2023 25:31:40 GMT",
     "Thu, 05 Jan 2023 21:31:40 CET", "Thu, 00 Jan 2023 21:31:40 GMT", "Thu, 05 Jan 0000 21:31:40 GMT",
     "Thursday, 05-Jan-23 21:31:40 GMT", "1672954300"],
)  # fmt: skip
def test_other_dates_are_refused(text: str) -> None:
    with pytest.raises(BadSignature):
        signatures.date_ms(text)


@given(st.text())
def test_a_date_of_garbage_is_only_ever_a_bad_signature(text: str) -> None:
    with pytest.raises(BadSignature):
        signatures.date_ms(text)


NOW = signatures.date_ms("Thu, 05 Jan 2023 21:31:40 GMT")


@pytest.mark.parametrize("skew", [0, 300_000, -300_000])
def test_five_minutes_of_skew_are_in(skew: int) -> None:
    signatures.check_date(("date",), ALL, NOW + skew)


@pytest.mark.parametrize("skew", [300_001, -300_001])
def test_more_than_five_minutes_are_out(skew: int) -> None:
    with pytest.raises(BadSignature, match="from the server's time"):
        signatures.check_date(("date",), ALL, NOW + skew)


def test_the_date_that_counts_is_the_one_that_was_signed() -> None:
    old = b"Thu, 05 Jan 2012 21:31:40 GMT"
    both = {"date": ALL["date"], "x-date": old}
    signatures.check_date(("date",), both, NOW)
    with pytest.raises(BadSignature):
        signatures.check_date(("x-date",), both, NOW)
    signatures.check_date(("x-date",), {"date": old, "x-date": ALL["date"]}, NOW)
    with pytest.raises(BadSignature, match="not signed"):
        signatures.check_date(("host",), both, NOW)


@given(st.binary())
def test_the_hash_is_that_of_the_body(body: bytes) -> None:
    sent = base64.b64encode(hashlib.sha256(body).digest())
    signatures.check_body({"x-content-sha256": sent}, body)
    with pytest.raises(BadSignature):
        signatures.check_body({"x-content-sha256": sent}, body + b"x")


def test_the_hash_of_nothing_is_the_one_in_the_documentation() -> None:
    signatures.check_body(ALL, b"")
