"""SaslAuthenticate on the wire: several tokens, and logins that end (KIP-368)."""

from scramp import ScramClient
from tests.harness.wire import Wire

from headrace.client.channel import ConnectionEnded
from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from headrace.testing import InProcessServer


def agree(client: Wire, mechanism: str, version: int = 1) -> Code:
    answer = client.ask(SaslHandshakeRequest(mechanism=mechanism), version)
    return Code(answer.error_code)


def login(client: Wire, name: str = "jane", mechanism: str = "SCRAM-SHA-256") -> tuple[Code, int]:
    """The code of the last answer, and how long the login lasts."""
    assert agree(client, mechanism) is Code.NONE
    if mechanism == "PLAIN":
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=f"\0{name}\0secret".encode()), 1)
        return Code(answer.error_code), answer.session_lifetime_ms
    scram = ScramClient([mechanism], name, "secret")
    first = client.ask(SaslAuthenticateRequest(auth_bytes=scram.get_client_first().encode()), 1)
    assert (first.error_code, first.session_lifetime_ms) == (0, 0)
    scram.set_server_first(first.auth_bytes.decode())
    last = client.ask(SaslAuthenticateRequest(auth_bytes=scram.get_client_final().encode()), 1)
    if last.error_code == 0:
        scram.set_server_final(last.auth_bytes.decode())
    return Code(last.error_code), last.session_lifetime_ms


def served(client: Wire) -> bool:
    try:
        return bool(client.ask(MetadataRequest(topics=[]), 12).brokers)
    except ConnectionEnded:
        return False


def test_nothing_is_served_between_the_tokens(login_server: InProcessServer) -> None:
    with Wire(login_server.listeners["SASL_PLAINTEXT"]) as client:
        assert agree(client, "SCRAM-SHA-256") is Code.NONE
        first = ScramClient(["SCRAM-SHA-256"], "jane", "secret").get_client_first()
        assert client.ask(SaslAuthenticateRequest(auth_bytes=first.encode()), 1).error_code == 0
        assert not served(client)


def test_tokens_may_come_bare(login_server: InProcessServer) -> None:
    with Wire(login_server.listeners["SASL_PLAINTEXT"]) as client:
        assert agree(client, "SCRAM-SHA-512", version=0) is Code.NONE
        scram = ScramClient(["SCRAM-SHA-512"], "jane", "secret")
        client.send_frame(scram.get_client_first().encode())
        scram.set_server_first(client.receive_frame().decode())
        client.send_frame(scram.get_client_final().encode())
        scram.set_server_final(client.receive_frame().decode())
        assert served(client)


def test_a_login_ends_and_the_next_must_be_the_same_persons(login_server: InProcessServer) -> None:
    with (
        Wire(login_server.listeners["SASL_PLAINTEXT"]) as late,
        Wire(login_server.listeners["SASL_PLAINTEXT"]) as again,
        Wire(login_server.listeners["SASL_PLAINTEXT"]) as other,
    ):
        for client in (late, again, other):
            assert login(client) == (Code.NONE, 60_000)
            assert served(client)
        assert login(again) == (Code.NONE, 60_000)  # in time
        login_server.clock.advance(seconds=61)
        assert not served(late)
        assert login(again) == (Code.NONE, 60_000)
        assert served(again)
        assert login(other, mechanism="PLAIN")[0] is Code.SASL_AUTHENTICATION_FAILED
        assert not served(other)


def test_who_fails_has_to_wait() -> None:
    with (
        InProcessServer(
            listeners="SASL_PLAINTEXT://127.0.0.1:0", connection_failed_authentication_delay_ms=3_600_000
        ) as running,
        Wire(running.kafka) as client,
    ):
        assert agree(client, "PLAIN") is Code.NONE
        client.send(SaslAuthenticateRequest(auth_bytes=b"\0jane\0guess"), 1)
        assert client.is_silent(0.2)
        while client.is_silent(0.02):  # the server may not have got as far as to wait
            running.clock.advance(seconds=3_600)
        assert client.receive().error_code == Code.SASL_AUTHENTICATION_FAILED
        assert client.ends()
