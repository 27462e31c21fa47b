"""Parse and check HTTP signatures of Oracle's SDKs. Pure.

Source: Oracle Cloud Infrastructure, "Request Signatures", a profile of draft-cavage-http-signatures-08. The order of
parameters and the case of header names do not matter.
"""

import base64
import binascii
import calendar
import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

MAX_SKEW_MS = 300_000
"""Maximum difference between a request's date and the server's time."""

DATES = ("x-date", "date")
"""Either may be signed. Browsers cannot set `date`, so the TypeScript SDK signs `x-date` and sends both."""

_REQUEST_TARGET = "(request-target)"
_ALWAYS = frozenset({_REQUEST_TARGET, "host"})
_WITH_BODY = frozenset({"content-length", "content-type", "x-content-sha256"})
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})

_PARAMETER = re.compile(r'\s*([A-Za-z]+)="([^"]*)"\s*(?:,|$)')
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_FINGERPRINT = re.compile(r"[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){15}")
_VERSION = re.compile(r"v[0-9]+(?:\.[0-9]+)*")
_HTTP_DATE = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), ([0-9]{1,2}) ([A-Z][a-z]{2}) ([0-9]{4}) "
    r"([0-9]{2}):([0-9]{2}):([0-9]{2}) (?:GMT|UTC)"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TOKEN = "ST$"
_MOST_LETTERS = 16_384  # real tokens have 1,000 to 4,000
_MOST_NAMES = 1024  # characters of the list of signed headers; SDKs use up to about 120


class BadSignature(Exception):
    """The reason for the log; clients do not get it."""


class ApiKey(msgspec.Struct, frozen=True):
    """`tenancy/user/fingerprint`: an uploaded key."""

    tenancy: str
    user: str
    fingerprint: str
    """MD5 of the public key's DER form, as 16 hex pairs with colons, lower case."""


class SecurityToken(msgspec.Struct, frozen=True):
    """`ST$<JWT>`: a session, an instance or a workload."""

    tenancy: str
    user: str


class ResourcePrincipal(msgspec.Struct, frozen=True):
    """`resource/v2.1/<resource>` or `resource/v2.1.1/<tenancy>/<resource>`."""

    tenancy: str
    user: str
    """The resource's OCID."""


KeyId = ApiKey | SecurityToken | ResourcePrincipal


class Signature(msgspec.Struct, frozen=True):
    """A parsed Authorization header."""

    key_id: KeyId
    names: tuple[str, ...]
    """The signed headers in lower case, in their order."""
    value: bytes


def parse(authorization: str) -> Signature:
    """Parse an Authorization header. Raises BadSignature."""
    if len(authorization) > _MOST_LETTERS:
        raise BadSignature("the header is too long")
    scheme, _, rest = authorization.strip().partition(" ")
    if scheme.lower() != "signature":
        raise BadSignature(f"the scheme is {scheme[:20]!r}, not Signature")
    parameters = _parameters(rest)
    for name in ("keyId", "headers", "signature", "algorithm"):
        if name not in parameters:
            raise BadSignature(f"there is no parameter {name}")
    if parameters["algorithm"].lower() != "rsa-sha256":
        raise BadSignature("the algorithm is not rsa-sha256")
    if parameters.get("version", "1") != "1":
        raise BadSignature("the version is not 1")
    try:
        value = base64.b64decode(parameters["signature"], validate=True)
    except (binascii.Error, ValueError):
        raise BadSignature("the signature is not base64") from None
    if not value:
        raise BadSignature("the signature is empty")
    if len(parameters["headers"]) > _MOST_NAMES:
        raise BadSignature("the list of signed headers is too long")
    return Signature(parse_key_id(parameters["keyId"]), _names(parameters["headers"]), value)


def _parameters(text: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _PARAMETER.match(text, position)
        if match is None:
            raise BadSignature("what follows the scheme is not a list of parameters")
        if match[1] in parameters:
            raise BadSignature(f"parameter {match[1]} is there twice")
        parameters[match[1]] = match[2]
        position = match.end()
    return parameters


@lru_cache(maxsize=256)
def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.lower().split(" "))
    for name in names:
        if name != _REQUEST_TARGET and _NAME.fullmatch(name) is None:
            raise BadSignature("the list of signed headers is malformed")
    if len(set(names)) < len(names):
        raise BadSignature("a header is listed twice")
    return names


@lru_cache(maxsize=256)
def parse_key_id(text: str) -> KeyId:
    """Return the identity in a keyId. Raises BadSignature.

    The parts of an API key's id are safe file names: no separators, no leading dots.
    """
    if text.startswith(_TOKEN):
        return _security_token(text.removeprefix(_TOKEN))
    parts = text.split("/")
    if parts[0] == "resource" and len(parts) >= 3 and _VERSION.fullmatch(parts[1]):
        if not all(_PART.fullmatch(part) for part in parts[2:]) or len(parts) > 4:
            raise BadSignature("the keyId is not that of a resource principal")
        return ResourcePrincipal(parts[2] if len(parts) == 4 else "", parts[-1])
    if len(parts) != 3 or not all(_PART.fullmatch(part) for part in parts[:2]) or not _FINGERPRINT.fullmatch(parts[2]):
        raise BadSignature("the keyId is not tenancy/user/fingerprint")
    return ApiKey(parts[0], parts[1], parts[2].lower())


def _security_token(token: str) -> SecurityToken:
    if not token or not token.isascii() or any(letter.isspace() for letter in token):
        raise BadSignature("there is no token after ST$")
    claims: object = None
    parts = token.split(".")
    if len(parts) == 3:
        try:
            claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        except (binascii.Error, ValueError, RecursionError):
            claims = None
    if not isinstance(claims, dict):
        return SecurityToken("", "")
    return SecurityToken(_text(claims, "tenant", "opc-tenant"), _text(claims, "sub"))


def _text(claims: Mapping[object, object], *names: str) -> str:
    found = (claims.get(name) for name in names)
    return next((text for text in found if isinstance(text, str)), "")


def headers_of(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, bytes]:
    """Return headers by lower-case name. Repeated ones are joined with commas."""
    found: dict[str, list[bytes]] = {}
    for name, value in pairs:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.strip())
    return {name: b", ".join(values) for name, values in found.items()}


def check_coverage(names: tuple[str, ...], method: str, headers: Mapping[str, bytes], *, signs_body: bool) -> None:
    """Check that required headers are signed and present. Raises BadSignature.

    The signature of PutMessages covers no body (`signs_body=False`).
    """
    listed = set(names)
    required = _ALWAYS | _WITH_BODY if signs_body and method.upper() in _BODY_METHODS else _ALWAYS
    if not required <= listed:
        raise BadSignature(f"not signed: {', '.join(sorted(required - listed))}")
    if listed.isdisjoint(DATES):
        raise BadSignature("not signed: date or x-date")
    for name in names:
        if name != _REQUEST_TARGET and name not in headers:
            raise BadSignature(f"header {name} was signed and is not there")


def signing_string(names: tuple[str, ...], method: str, raw_target: bytes, headers: Mapping[str, bytes]) -> bytes:
    """Return the string that the client signed.

    `raw_target`: path and query as received, not decoded.
    """
    target = method.lower().encode("ascii", "replace") + b" " + raw_target
    return b"\n".join(
        name.encode("ascii") + b": " + (target if name == _REQUEST_TARGET else headers[name]) for name in names
    )


def check_date(names: tuple[str, ...], headers: Mapping[str, bytes], now_ms: int) -> None:
    """Check that the signed date is within five minutes of `now_ms`. Raises BadSignature."""
    for name in DATES:
        if name in names:
            sent_ms = date_ms(headers[name].decode("latin-1"))
            if abs(now_ms - sent_ms) > MAX_SKEW_MS:
                raise BadSignature(f"{name} is {(now_ms - sent_ms) // 1000} s from the server's time")
            return
    raise BadSignature("not signed: date or x-date")


def date_ms(text: str) -> int:
    """Return an HTTP date in milliseconds since 1970. Raises BadSignature."""
    match = _HTTP_DATE.fullmatch(text.strip())
    if match is None or match[2] not in _MONTHS:
        raise BadSignature("the date is not an HTTP date")
    day, year, hour, minute, second = (int(match[group]) for group in (1, 3, 4, 5, 6))
    if not (1 <= day <= 31 and year >= 1970 and hour < 24 and minute < 60 and second <= 60):
        raise BadSignature("the date is not an HTTP date")
    return calendar.timegm((year, _MONTHS.index(match[2]) + 1, day, hour, minute, second)) * 1000


def check_body(headers: Mapping[str, bytes], body: bytes) -> None:
    """Check the body against x-content-sha256, if sent. Raises BadSignature."""
    sent = headers.get("x-content-sha256")
    if sent is not None and sent != base64.b64encode(hashlib.sha256(body).digest()):
        raise BadSignature("x-content-sha256 is not that of the body")
