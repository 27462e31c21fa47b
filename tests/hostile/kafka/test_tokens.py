"""Invalid tokens at a listener with a login, next to a client that pings, affect no other client."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from headrace.testing import server
from headrace.testing.process import Server
from tests.harness.issuer import AUDIENCE, Issuer
from tests.hostile.http.bystander import Bystander
from tests.hostile.kafka.attacking import carry_out
from tests.hostile.kafka.corpus import Attack, encoded
from tests.hostile.kafka.talking import PROBE, Talk

LARGE = 500_000
"""Hardly less than a request before a login may have."""
AT_A_TIME = 8
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")
TOKENS = {
    "nothing": b"",
    "zeros": bytes(LARGE),
    "no text": b"\xff" * LARGE,
    "commas": b"," * LARGE,
    "a long name": b"\0" + b"a" * LARGE + b"\0x",
    "a long password": b"\0admin\0" + b"p" * LARGE,
    "a long SCRAM name": b"n,,n=" + b"=2C" * (LARGE // 3) + b",r=x",
    "a long nonce": b"n,,n=admin,r=" + b"r" * LARGE,
    "many attributes": b"n,,n=admin,r=x" + b",a=b" * (LARGE // 4),
    "an end without a beginning": b"c=biws,r=x,p=" + b"A" * LARGE,
    "a deep token": b"n,,\1auth=Bearer " + b"eyJ" * (LARGE // 3) + b"\1\1",
    "many keys": b"n,,\1" + b"a=b\1" * (LARGE // 4) + b"\1",
}


PART = 15_000
"""Characters of a token's part that is nearly too long (`sasl.oauthbearer.LONGEST_TOKEN`)."""
HEADERS: dict[str, Any] = {
    "alg": ["none", "HS256", "RS256", "ES256", 1, None, [], {"a": 1}, "x" * PART],
    "kid": ["ec", "shared", "", "x" * PART, "\ud800\n\x1b[2J", 1, [], {}],
    "crit": [["b64"], ["x"] * 3_000, "b64"],
    "b64": [False, 1],
    "jwk": [{"kty": "oct", "k": "AAAA"}],
    "jku": ["http://127.0.0.1:1/", "file:///etc/passwd"],
    "x5c": [["A" * PART]],
    "zip": ["DEF"],
}
CLAIMS: dict[str, Any] = {
    "exp": ["x", -1, 10**30, 1e300, True, [], {}, None],
    "iat": ["x", 10**30, None],
    "nbf": [10**12, "x", []],
    "sub": ["", "\ud800", 1, None, [], {"a": 1}, "x" * 300, ["x"] * 3_000],
    "aud": ["x", 1, {}, [1], ["x"] * 3_000, None, [[AUDIENCE]]],
}


def _part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _bearers(issuer: Issuer) -> Iterator[str]:
    """Invalid tokens: unsigned, signed correctly with wrong claims, and malformed."""
    good = issuer.token("admin")
    head, claims, signature = good.split(".")
    for name, values in HEADERS.items():
        for value in values:
            made = json.dumps({"alg": "RS256", "kid": "rsa"} | {name: value}).encode()
            yield f"{_part(made)}.{claims}.{signature[:-8]}AAAAAAAA"
    for name, values in CLAIMS.items():
        for value in values:
            yield issuer.token("admin", **{name: value})
    yield issuer.token("admin", exp=1, deep=json.loads("[" * 500 + "]" * 500))
    for content in (
        b"[" * 9_000,
        b'{"a":' * 2_000,
        b"9" * 9_000,
        b"\xff" * 9_000,
        b"",
        b"null",
        b'"%b"' % bytes(9_000),
    ):
        yield f"{_part(content)}.{claims}.{signature}"
        yield f"{head}.{_part(content)}.{signature}"
        yield f"{head}.{claims}.{_part(content)}"
    yield from ("." * PART, "a." * (PART // 2), "=" * PART, f"{good}.", f".{good}", good[:-1], f"{head}..{signature}")
    yield f"{head}.{claims}."


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[tuple[Server, Bystander]]:
    """A server whose first listener requires a login, and its bystander."""
    folder = tmp_path_factory.mktemp("secured")
    (folder / "first").write_text("admin:a-password\n")
    arguments = [
        "--bootstrap-user", str(folder / "first"),
        "--set", "listeners=SASL_PLAINTEXT://127.0.0.1:0",
        "--set", f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        "--set", f"sasl.oauthbearer.jwks.endpoint.url={issuer.write(folder / 'keys.json')}",
        "--set", f"sasl.oauthbearer.expected.audience={AUDIENCE}",
    ]  # fmt: skip
    with server(arguments=arguments) as started:
        bystander = Bystander(started, http=False)
        yield started, bystander
        bystander.close()
        assert "Traceback" not in started.log()
        assert '"event": "logged in"' not in started.log()


def _attacks(token: bytes) -> Iterator[Attack]:
    """By each kind of mechanism from 40 connections at a time: in requests, and bare after a handshake of version 0."""
    whole = encoded(SaslAuthenticateRequest(auth_bytes=token), 2)
    bare = len(token).to_bytes(4) + token
    for mechanism in MECHANISMS:
        # Bare tokens of each mechanism are in test_frames.
        for version, frames in ((1, whole), (0, bare))[: 1 if mechanism == "OAUTHBEARER" else 2]:
            begun = encoded(SaslHandshakeRequest(mechanism=mechanism), version)
            yield Attack(mechanism, 36, begun + frames, connections=40, answers=2)
    yield Attack("without a handshake", 36, whole * 2, answers=2)


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
def test_tokens_of_any_kind_affect_no_other_client(secured: tuple[Server, Bystander], token: bytes) -> None:
    started, bystander = secured
    for attack in _attacks(token):
        print(attack.name, bystander.harmless(lambda attack=attack: carry_out(attack, started)))  # type: ignore[misc]


def test_bearers_of_any_kind_are_rejected_without_harm(secured: tuple[Server, Bystander], issuer: Issuer) -> None:
    started, bystander = secured

    def ask(token: str) -> None:
        message = f"n,,\1auth=Bearer {token}\1\1".encode()
        with Talk(started.kafka) as talk:
            talk.say(encoded(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1))
            for said in (message, b"\1"):
                talk.say(encoded(SaslAuthenticateRequest(auth_bytes=said), 2))
            talk.say(PROBE)
            # The response would reveal the address of the server.
            assert b"127.0.0.1" not in talk.end(), token

    tokens = list(_bearers(issuer))
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        print(bystander.harmless(lambda: list(threads.map(ask, tokens)).clear()))
