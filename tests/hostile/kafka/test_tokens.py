"""Tokens that are none, at a listener that wants a login, beside a client that pings: they hurt nobody."""

from collections.abc import Iterator

import pytest

from headrace.kafka.codec.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from headrace.testing import server
from headrace.testing.process import Server
from tests.hostile.http.bystander import Bystander
from tests.hostile.kafka.attacking import carry_out
from tests.hostile.kafka.corpus import Attack, encoded

LARGE = 500_000
"""Hardly less than a request before a login may have."""
MECHANISMS = ("PLAIN", "SCRAM-SHA-256")
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


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Bystander]]:
    """A server of whose listeners the first one wants a login, and who stands beside."""
    folder = tmp_path_factory.mktemp("secured")
    (folder / "first").write_text("admin:a-password\n")
    arguments = [
        "--bootstrap-user", str(folder / "first"),
        "--set", "listeners=SASL_PLAINTEXT://127.0.0.1:0",
        "--set", f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
    ]  # fmt: skip
    with server(arguments=arguments) as started:
        bystander = Bystander(started, http=False)
        yield started, bystander
        bystander.close()
        assert "Traceback" not in started.log()


def _attacks(token: bytes) -> Iterator[Attack]:
    """By each kind of mechanism from 40 connections at a time: in requests, and bare after a handshake of version 0."""
    whole = encoded(SaslAuthenticateRequest(auth_bytes=token), 2)
    bare = len(token).to_bytes(4) + token
    for mechanism in MECHANISMS:
        for version, frames in ((1, whole), (0, bare)):
            begun = encoded(SaslHandshakeRequest(mechanism=mechanism), version)
            yield Attack(mechanism, 36, begun + frames, connections=40, answers=2)
    yield Attack("without a handshake", 36, whole * 2, answers=2)


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
def test_a_token_of_any_kind_hurts_nobody(secured: tuple[Server, Bystander], token: bytes) -> None:
    started, bystander = secured
    for attack in _attacks(token):
        print(attack.name, bystander.harmless(lambda attack=attack: carry_out(attack, started)))  # type: ignore[misc]
