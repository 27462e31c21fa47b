"""Tokens without a network: which are taken, and when keys are read again."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, cast

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import RSAAlgorithm
from structlog.testing import capture_logs
from tests.harness.issuer import AUDIENCE, ISSUER, Issuer

from headrace.broker.broker import Broker
from headrace.broker.logins import Admitted, Bearer, LoginRefused
from headrace.sasl.jwks import Keys, KeysUnreadable, checked
from headrace.sasl.oauthbearer import OAuthBearer
from headrace.sasl.tokens import INVALID, TokenRules, Tokens
from headrace.security.access.principal import Principal
from headrace.testing.clock import ManualClock

NOW = 1_700_000_000
RULES = TokenRules((AUDIENCE, "other"), ISSUER, "sub", 30_000)
STRANGER = rsa.generate_private_key(65537, 2048)
BROKER = cast("Broker", object())


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def tokens(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokens]:
    """A verifier at `NOW`."""
    clock = ManualClock(NOW * 1000)
    keys = Keys(issuer.write(tmp_path_factory.mktemp("keys") / "keys.json"), 60_000, clock)
    yield Tokens(keys, RULES, clock)
    keys.close()


async def reason(check: Callable[[str], Awaitable[Bearer]], token: str) -> str:
    """The reason for a refused token, which the client does not get."""
    with pytest.raises(LoginRefused) as caught:
        await check(token)
    assert str(caught.value) == INVALID
    return caught.value.reason


async def test_good_tokens_say_whose_they_are_and_for_how_long(issuer: Issuer, tokens: Tokens) -> None:
    assert await tokens.check(issuer.token(now=NOW)) == Bearer("jane", 3_600_000)
    assert await tokens.check(issuer.token("jöe", now=NOW, algorithm="PS512")) == Bearer("jöe", 3_600_000)
    assert await tokens.check(issuer.token(now=NOW, kid="ec", algorithm="ES256")) == Bearer("jane", 3_600_000)
    assert await tokens.check(issuer.token(now=NOW, aud=["x", "other"])) == Bearer("jane", 3_600_000)
    # Its algorithm identifies the key.
    assert await tokens.check(issuer.token(now=NOW, kid=None)) == Bearer("jane", 3_600_000)
    # Clocks of others may be 30 s ahead or behind.
    assert await tokens.check(issuer.token(now=NOW + 29)) == Bearer("jane", 3_629_000)
    assert await tokens.check(issuer.token(now=NOW, exp=NOW - 29)) == Bearer("jane", 1)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": NOW - 31}, "expired"),
        ({"iat": NOW + 31}, "not valid yet"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"aud": "elsewhere"}, "InvalidAudienceError"),
        ({"aud": None}, "MissingRequiredClaimError"),
        ({"aud": [1]}, "InvalidAudienceError"),
        ({"iss": "https://login.example.com/"}, "InvalidIssuerError"),
        ({"iss": None}, "MissingRequiredClaimError"),
        ({"exp": None}, "MissingRequiredClaimError"),
        ({"iat": None}, "MissingRequiredClaimError"),
        ({"sub": None}, "MissingRequiredClaimError"),
        ({"sub": ""}, "no name"),
        ({"sub": "j" * 257}, "no name"),
        ({"sub": ["jane"]}, "no name"),
        ({"sub": "jane\ud800"}, "no name"),
        ({"exp": "tomorrow"}, "exp is no time"),
        ({"exp": 1e300}, "exp is no time"),
        ({"exp": float("nan")}, "exp is no time"),
        ({"exp": True}, "exp is no time"),
        ({"nbf": "now"}, "nbf is no time"),
        ({"kid": "ec"}, "no key is known of id 'ec' and algorithm 'RS256'"),
        ({"kid": "unknown"}, "no key is known of id 'unknown'"),
        ({"key": STRANGER}, "InvalidSignatureError"),
        ({"more": "x" * 20_000}, "characters"),
    ],
)
async def test_other_tokens_are_refused(issuer: Issuer, tokens: Tokens, claims: dict[str, Any], why: str) -> None:
    kid = claims.get("kid", "rsa")
    token = issuer.token(now=NOW, **{"kid": kid, "key": issuer.rsa, **claims})
    assert why in await reason(tokens.check, token)


def part(value: object) -> str:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


async def test_public_data_does_not_sign_tokens(issuer: Issuer, tokens: Tokens) -> None:
    """`alg: none`, and the public key or a shared one taken for the secret of an HMAC."""
    claims = part({"sub": "jane", "iss": ISSUER, "aud": AUDIENCE, "iat": NOW, "exp": NOW + 60})
    for nothing in ("none", "None", "nOnE", ""):
        unsigned = f"{part({'alg': nothing, 'typ': 'JWT', 'kid': 'rsa'})}.{claims}."
        assert "no key is known" in await reason(tokens.check, unsigned) or not nothing
    public = issuer.rsa.public_key()
    secrets = [public.public_bytes(form, PublicFormat.SubjectPublicKeyInfo) for form in (Encoding.PEM, Encoding.DER)]
    for kid, secret in (("rsa", secrets[0]), ("rsa", secrets[1]), ("shared", b"secret-secret-secret-secret-secret")):
        signed = f"{part({'alg': 'HS256', 'kid': kid})}.{claims}"
        mac = hmac.digest(secret, signed.encode(), hashlib.sha256)
        assert "algorithm 'HS256'" in await reason(tokens.check, f"{signed}.{part(mac)}")
    good = issuer.token(now=NOW)
    for key in ("jwk", "jku", "x5c", "x5u"):  # a key that the token brings itself is no key
        header = {"alg": "RS256", "kid": "mine", key: "https://example.org/"}
        assert "no key" in await reason(tokens.check, f"{part(header)}.{good.partition('.')[2]}")
    assert await reason(tokens.check, good[:-4] + ("AAAA" if not good.endswith("AAAA") else "BBBB"))


HEADERS = st.fixed_dictionaries(
    {"alg": st.sampled_from(["RS256", "ES256", "none", "EdDSA"]) | st.none() | st.integers()},
    optional={
        "kid": st.sampled_from(["rsa", "ec"]) | st.integers() | st.lists(st.text()),
        "b64": st.booleans(),
        "crit": st.lists(st.text()),
        "typ": st.text(),
    },
)


@given(
    token=st.text()
    | st.lists(st.binary().map(part), max_size=6).map(".".join)
    | st.tuples(HEADERS.map(part), st.binary().map(part) | st.just(part(b"[" * 9_000)), st.just("AAAA")).map(".".join)
    | st.just(f"{part(b'[' * 9_000)}.{part(b'{}')}.AAAA")
)
def test_garbage_is_no_token(tokens: Tokens, token: str) -> None:
    async def attempt() -> None:
        assert await reason(tokens.check, token)

    asyncio.run(attempt())


# The message that carries it


def admitted(bearer: Bearer) -> Admitted:
    return Admitted(Principal(bearer.name), BROKER, bearer.lifetime_ms)


async def check(token: str) -> Bearer:
    if token != "good":
        raise LoginRefused(INVALID, "bad")
    return Bearer("j,n=", 5)


@pytest.mark.parametrize(
    "message",
    [
        b"n,,\x01auth=Bearer good\x01\x01",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"n,a=j=2Cn=3D,\x01auth=bearer  good\x01\x01",
        b"n,,\x01host=x\x01auth=Bearer good\x01traceId=1 2\x01\x01",
    ],
)
async def test_a_message_brings_a_token(message: bytes) -> None:
    answer = await OAuthBearer(check, admitted).answer(message)
    assert answer.admitted == Admitted(Principal("j,n="), BROKER, 5)


@pytest.mark.parametrize(
    "message",
    [
        b"", b"\x01", b"n,,", b"n,,\x01\x01", b"n,,\x01auth=Bearer good\x01", b"n,,auth=Bearer good\x01\x01",
        b"x,,\x01auth=Bearer good\x01\x01", b"p=tls-unique,,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Basic good\x01\x01", b"n,,\x01auth=Bearer\x01\x01", b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer good\x01auth=Bearer good\x01\x01", b"n,,\x01auth=Bearer good\x01=x\x01\x01",
        b"n,,\x01auth=Bearer good\x01\x01\x01", b"\0jane\0good", b"n,a=a=b,\x01auth=Bearer good\x01\x01", b"\xff\xfe",
        b"n,a=jane,\x01auth=Bearer good\x01\x01", b"n,,\x01auth=Bearer " + b"g" * 100_000 + b"\x01\x01",
    ],
)  # fmt: skip
async def test_other_messages_are_refused_at_once(message: bytes) -> None:
    with pytest.raises(LoginRefused, match=r"^Authentication failed: "):
        await OAuthBearer(check, admitted).answer(message)


async def test_a_client_gets_json_and_is_then_rejected() -> None:
    for goodbye, told in ((b"\x01", INVALID), (b"n,,\x01auth=Bearer good\x01\x01", "Authentication failed"), (b"", "")):
        login = OAuthBearer(check, admitted)
        answer = await login.answer(b"n,,\x01auth=Bearer bad\x01\x01")
        assert (msgspec.json.decode(answer.token), answer.admitted) == ({"status": "invalid_token"}, None)
        with pytest.raises(LoginRefused) as caught:
            await login.answer(goodbye)
        assert str(caught.value).startswith(told)


# Where keys come from


class KeyServer:
    """Serves a key set, and notes how often it was asked."""

    def __init__(self, key_set: object) -> None:
        self.answer: tuple[int, bytes, dict[str, str]] = (200, json.dumps(key_set).encode(), {})
        self.asked = 0
        self.answers = threading.Event()
        """Until it is set, requests get no response."""
        self.answers.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                outer.answers.wait()
                status, body, headers = outer.answer
                self.send_response(status)
                for name, value in (headers | {"content-length": str(len(body))}).items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            def log_message(self, *_args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


async def test_keys_are_asked_for_once_and_again_when_old_or_unknown(issuer: Issuer) -> None:
    clock = ManualClock(NOW * 1000)
    with KeyServer(issuer.key_set()) as server, contextlib.closing(Keys(server.url, 60_000, clock)) as keys:
        tokens = Tokens(keys, RULES, clock)
        good, unknown = issuer.token(now=NOW), issuer.token(now=NOW, kid="new")
        await asyncio.gather(*(tokens.check(good) for _ in range(20)))
        assert server.asked == 1
        for _ in range(5):  # made-up tokens cause no request by the server
            await reason(tokens.check, unknown)
        assert server.asked == 1
        clock.advance(10_000)
        await asyncio.gather(*(reason(tokens.check, unknown) for _ in range(20)))
        assert server.asked == 2
        server.answer = (200, json.dumps(issuer.key_set(kid="new")).encode(), {})
        clock.advance(10_000)
        assert (await tokens.check(unknown)).name == "jane"
        assert "no key" in await reason(tokens.check, good)  # it was taken out
        server.answer = (200, json.dumps(issuer.key_set(kid="newer")).encode(), {})
        clock.advance(60_000)
        await tokens.check(unknown)  # it stays known while the others are requested
        assert (await tokens.check(issuer.token(now=NOW, kid="newer"))).name == "jane"
        assert server.asked == 4
        server.answer = (500, b"", {})
        clock.advance(60_000)
        with capture_logs() as logged:
            await tokens.check(issuer.token(now=NOW, kid="newer"))  # those known before stay in use
            await reason(tokens.check, unknown)
            await tokens.check(issuer.token(now=NOW, kid="newer"))
        assert ([line["log_level"] for line in logged], server.asked) == (["error"], 5)


async def test_an_unresponsive_address_delays_no_client(issuer: Issuer) -> None:
    clock = ManualClock(NOW * 1000)
    with KeyServer(issuer.key_set()) as server, contextlib.closing(Keys(server.url, 60_000, clock)) as keys:
        tokens = Tokens(keys, RULES, clock)
        await tokens.check(issuer.token(now=NOW))
        server.answers.clear()
        clock.advance(60_000)
        known = asyncio.ensure_future(tokens.check(issuer.token(now=NOW)))
        await asyncio.sleep(0)
        assert known.done()
        assert known.result().name == "jane"
        unknown = asyncio.ensure_future(reason(tokens.check, issuer.token(now=NOW, kid="new")))
        while not (clock.pending or unknown.done()):
            await asyncio.sleep(0)
        clock.advance(5_000)
        assert "no key is known" in await unknown


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((404, b"", {}), "404"),
        ((302, b"", {"location": "file:///etc/passwd"}), "302"),
        ((200, b"<html>", {}), "expected a JSON Web Key Set"),
        ((200, b'{"keys": {}}', {}), "none of its keys"),
        ((200, b'{"keys": [{"kty": "oct", "k": "AAAA"}, {"kty": "RSA", "use": "enc"}, 1]}', {}), "none of its keys"),
        ((200, b'{"keys": [{"kty": "RSA", "n": "AQAB"}, {"kty": ["RSA"]}, {"kty": "EC", "crv": {}}]}', {}), "none"),
        ((200, b" " * 300_000, {}), "more than 262144 bytes"),
        ((200, b"[" * 200_000, {}), "expected a JSON Web Key Set"),
    ],
)
async def test_an_invalid_key_set_is_reported(answer: tuple[int, bytes, dict[str, str]], why: str) -> None:
    with KeyServer({}) as server, contextlib.closing(Keys(server.url, 60_000, ManualClock())) as keys:
        server.answer = answer
        with pytest.raises(KeysUnreadable, match=why):
            await keys.load()


async def test_a_file_is_read_again_when_it_changes(issuer: Issuer, tmp_path: Path) -> None:
    clock = ManualClock(NOW * 1000)
    path = tmp_path / "my keys.json"
    with contextlib.closing(Keys(issuer.write(path), 60_000, clock)) as keys:
        tokens = Tokens(keys, RULES, clock)
        assert (await tokens.check(issuer.token(now=NOW))).name == "jane"
        other = Issuer()
        other.write(path)
        assert (await tokens.check(other.token(now=NOW))).name == "jane"
        assert await reason(tokens.check, issuer.token(now=NOW)) == "the token is not good: InvalidSignatureError"


async def test_a_broken_file_is_read_once_and_not_for_each_token(issuer: Issuer, tmp_path: Path) -> None:
    clock = ManualClock(NOW * 1000)
    path = tmp_path / "keys.json"
    with contextlib.closing(Keys(issuer.write(path), 60_000, clock)) as keys, capture_logs() as logged:
        tokens = Tokens(keys, RULES, clock)
        good = issuer.token(now=NOW)
        await tokens.check(good)
        for number, content in enumerate(["{", None], 1):
            if content is None:
                path.unlink()
            else:
                path.write_text(content)
            for _ in range(3):
                assert (await tokens.check(good)).name == "jane"
            assert [line["log_level"] for line in logged] == ["error"] * number
        clock.advance(10_000)
        await tokens.check(good)
        assert len(logged) == 3
        Issuer().write(path)
        assert "InvalidSignatureError" in await reason(tokens.check, good)


@pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits")  # from the issuer, who signs with it
async def test_short_keys_are_not_taken(tmp_path: Path) -> None:
    issuer = Issuer()
    issuer.rsa = rsa.generate_private_key(65537, 1024)
    clock = ManualClock(NOW * 1000)
    with contextlib.closing(Keys(issuer.write(tmp_path / "keys.json"), 60_000, clock)) as keys:
        tokens = Tokens(keys, RULES, clock)
        assert "InvalidKeyError" in await reason(tokens.check, issuer.token(now=NOW))
        curve = ec.generate_private_key(ec.SECP384R1())
        wrong = issuer.token(now=NOW, kid="ec", algorithm="ES384", key=curve)
        assert "algorithm 'ES384'" in await reason(tokens.check, wrong)


async def test_of_a_private_key_only_the_public_half_is_used(issuer: Issuer, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    private = RSAAlgorithm.to_jwk(issuer.rsa, as_dict=True) | {"kid": "rsa"}
    path.write_text(json.dumps({"keys": [private]}))
    clock = ManualClock(NOW * 1000)
    with contextlib.closing(Keys(path.as_uri(), 60_000, clock)) as keys, capture_logs() as logged:
        assert (await Tokens(keys, RULES, clock).check(issuer.token(now=NOW))).name == "jane"
    (line,) = logged
    assert ("private key" in line["event"], line["kid"], private["d"] in str(line)) == (True, "rsa", False)


@pytest.mark.parametrize("url", ["https://x/keys", "file:///keys", "http://127.0.0.1:1/k", "http://[::1]/k"])
def test_addresses_that_are_safe_from_changes_in_transit(url: str) -> None:
    assert checked(url, insecure=False) == url


@pytest.mark.parametrize("url", ["http://example.org/k", "ftp://x/k", "keys.json", "file:keys", "file://host/k", "x:"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"expected https://|use https"):
        checked(url, insecure=False)
    if url.startswith("http:"):
        assert checked(url, insecure=True) == url
