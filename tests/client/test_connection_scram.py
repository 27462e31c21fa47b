"""Spark's client against a server with a false identity, without Spark."""

import base64

import pytest

from headrace.client.connection import conversation
from headrace.client.errors import LoginRefused


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (b"r=%sx,s=c2FsdA==,i=4095", "asks for 4095 iterations by SCRAM: 4096 to 1000000"),
        (b"r=%sx,s=c2FsdA==,i=1000001", "asks for 1000001 iterations by SCRAM"),
        (b"r=%s\xff,s=c2FsdA==,i=4096", "the server answered SCRAM with"),
    ],
)
def test_a_challenge_that_is_not_fit_gets_no_proof(challenge: bytes, reason: str) -> None:
    talk = conversation("SCRAM-SHA-256", "etl", "secret")
    nonce = next(talk).rpartition(b"r=")[2]
    with pytest.raises(LoginRefused, match=reason):
        talk.send(challenge % nonce)


@pytest.mark.parametrize("verdict", [b"v=" + base64.b64encode(bytes(32)), b"\xff", b""])
def test_a_server_that_does_not_know_the_password_is_reported(verdict: bytes) -> None:
    talk = conversation("SCRAM-SHA-256", "etl", "secret")
    nonce = next(talk).rpartition(b"r=")[2]
    assert b",p=" in talk.send(b"r=%sx,s=c2FsdA==,i=4096" % nonce)
    with pytest.raises(LoginRefused, match="does not know the password"):
        talk.send(verdict)
