"""Real clients log in with tokens, and log in again before these expire."""

import asyncio
import datetime as dt
import ssl
import time
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from structlog.testing import capture_logs
from tests.harness.issuer import AUDIENCE, ISSUER, Issuer
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire
from tests.sasl.going_on import goes_on_when_a_login_ends

from headrace.broker.admin.audit import WINDOW_MS
from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.client.channel import ConnectionEnded
from headrace.kafka.errors import Code
from headrace.protocol.messages import MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from headrace.security.tls.files import GeneratedFiles, create
from headrace.server.config import StartError
from headrace.testing import InProcessServer

with warnings.catch_warnings():
    # It reads its own schema files by a call that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.net.sasl.oauth import AbstractTokenProvider

    from kafka import KafkaProducer


class Tokened(msgspec.Struct):
    """A server that accepts tokens, their issuer, and the settings of clients."""

    server: InProcessServer
    made: GeneratedFiles
    issuer: Issuer

    @property
    def address(self) -> str:
        return self.server.listeners["SASL_SSL"]

    def confluent(self, token: str, lifetime_s: float = 3_600) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.made.authority),
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _config: (token, time.time() + lifetime_s),
            "log_level": 0,
        }

    def python(self, provider: object) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.address,
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=self.made.authority),
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": provider,
        }


@pytest.fixture(scope="module")
def tokened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokened]:
    folder = tmp_path_factory.mktemp("tokens")
    made = create(folder, (), "jane", dt.datetime.now(dt.UTC))
    issuer = Issuer()
    with InProcessServer(
        listeners="SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        ssl_keystore_location=made.server,
        sasl_enabled_mechanisms="OAUTHBEARER,PLAIN",
        sasl_oauthbearer_jwks_endpoint_url=issuer.write(folder / "keys.json"),
        sasl_oauthbearer_expected_audience=AUDIENCE,
        sasl_oauthbearer_expected_issuer=ISSUER,
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users="User:jane",
        oci_auth="verify",
        oci_auth_keys=folder,
        connection_failed_authentication_delay_ms=0,
    ) as running:
        yield Tokened(running, made, issuer)


def test_who_has_a_token_writes_and_reads(tokened: Tokened) -> None:
    token = tokened.issuer.token()

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token

        def extensions(self) -> dict[str, str]:
            return {"traceId": "123"}

    class AioProvider(AioTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return token

    producer = Producer(tokened.confluent(token))
    producer.produce("t", b"confluent")
    assert producer.flush(60) == 0
    other = KafkaProducer(**tokened.python(Provider()))
    other.send("t", b"kafka-python").get(60)
    other.close()

    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer("t", **tokened.python(AioProvider()), auto_offset_reset="earliest")
        await consumer.start()
        try:
            return [(await consumer.getone()).value for _ in range(2)]
        finally:
            await consumer.stop()

    assert asyncio.run(read()) == [b"confluent", b"kafka-python"]


def test_others_are_refused_in_the_clients_own_words(tokened: Tokened) -> None:
    heard: list[KafkaError] = []
    client = AdminClient(tokened.confluent(tokened.issuer.token(aud="elsewhere")) | {"error_cb": heard.append})

    def refused() -> bool:
        client.poll(0.01)
        return KafkaError._AUTHENTICATION in {each.code() for each in heard}

    wait_for(refused, "word of the refusal")
    assert any("invalid_token" in each.str() for each in heard)

    class AioProvider(AioTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return tokened.issuer.token(exp=1)

    async def read() -> None:
        consumer = AIOKafkaConsumer("t", **tokened.python(AioProvider()))
        try:
            with pytest.raises(AioKafkaError):
                await consumer.start()
        finally:
            await consumer.stop()

    asyncio.run(read())


def test_the_name_in_a_token_is_who_access_rules_ask_about(tokened: Tokened) -> None:
    client = AdminClient(tokened.confluent(tokened.issuer.token("joe")))
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        client.create_topics([NewTopic("joes", 1)])["joes"].result(60)


def login(client: Wire, token: str) -> tuple[Code, int]:
    """The code of the last answer, and how long the login lasts."""
    assert client.ask(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1).error_code == 0
    message = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    answer = client.ask(SaslAuthenticateRequest(auth_bytes=message), 1)
    if answer.auth_bytes:
        assert answer.auth_bytes == b'{"status":"invalid_token"}'
        answer = client.ask(SaslAuthenticateRequest(auth_bytes=b"\x01"), 1)
        assert answer.error_message == '{"status":"invalid_token"}'
    return Code(answer.error_code), answer.session_lifetime_ms


def test_a_login_lasts_as_long_as_its_token(tokened: Tokened) -> None:
    clock = tokened.server.clock
    now = clock.now_ms() / 1000
    with Wire(tokened.server.kafka) as client:
        code, lifetime_ms = login(client, tokened.issuer.token(now=now, exp=now + 300))
        assert code is Code.NONE
        assert 240_000 < lifetime_ms <= 300_000
        clock.advance(seconds=200)
        assert client.ask(MetadataRequest(topics=[]), 12).brokers
        # Another token of the same name goes on from there.
        assert login(client, tokened.issuer.token(now=now, exp=now + 500))[0] is Code.NONE
        clock.advance(seconds=200)
        assert client.ask(MetadataRequest(topics=[]), 12).brokers
        clock.advance(seconds=101)
        with pytest.raises(ConnectionEnded):
            client.ask(MetadataRequest(topics=[]), 12)
    with Wire(tokened.server.kafka) as client:
        assert login(client, tokened.issuer.token(now=now, exp=now + 400))[0] is Code.SASL_AUTHENTICATION_FAILED
        with pytest.raises(ConnectionEnded):
            client.ask(MetadataRequest(topics=[]), 12)


def test_a_rejected_client_is_logged_once_whether_it_disconnects_or_not(tokened: Tokened) -> None:
    for polite in (False, True):
        # Clients of other tests may still be trying: they have used up their lines, and have other reasons.
        tokened.server.clock.advance(seconds=WINDOW_MS // 1_000)
        kid = f"polite-{polite}"
        message = f"n,,\x01auth=Bearer {tokened.issuer.token(kid=kid)}\x01\x01".encode()
        with capture_logs() as lines, Wire(tokened.server.kafka) as client:
            assert client.ask(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1).error_code == 0
            assert client.ask(SaslAuthenticateRequest(auth_bytes=message), 1).auth_bytes
            if polite:
                assert client.ask(SaslAuthenticateRequest(auth_bytes=b"\x01"), 1).error_code
        told = [line["reason"] for line in lines if line["event"] == "login refused"]
        assert sum(kid in reason for reason in told) == 1


def test_another_token_does_not_change_the_user(tokened: Tokened) -> None:
    now = tokened.server.clock.now_ms() / 1000
    with Wire(tokened.server.kafka) as client:
        assert login(client, tokened.issuer.token(now=now))[0] is Code.NONE
        assert login(client, tokened.issuer.token("joe", now=now))[0] is Code.SASL_AUTHENTICATION_FAILED


def test_the_broker_may_ask_for_logins_more_often(tmp_path: Path) -> None:
    issuer = Issuer()
    with InProcessServer(
        listeners="SASL_PLAINTEXT://127.0.0.1:0",
        sasl_enabled_mechanisms="OAUTHBEARER",
        sasl_oauthbearer_jwks_endpoint_url=issuer.write(tmp_path / "keys.json"),
        sasl_oauthbearer_sub_claim_name="preferred_username",
        connections_max_reauth_ms=2_000,
    ) as running:
        token = issuer.token("", preferred_username="jane")
        with Wire(running.kafka) as client:
            assert login(client, token) == (Code.NONE, 2_000)
        asked = []

        def give(_config: str) -> tuple[str, float]:
            asked.append(1)
            return token, time.time() + 3_600

        settings: dict[str, Any] = {
            "bootstrap.servers": running.kafka,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": give,
            "log_level": 0,
        }
        goes_on_when_a_login_ends(running, settings)


def test_pages_and_metrics_take_tokens(tokened: Tokened) -> None:
    now = tokened.server.clock.now_ms() / 1000

    def ask(path: str, authorization: str | None) -> tuple[int, str]:
        headers = {} if authorization is None else {"authorization": authorization}
        request = urllib.request.Request(tokened.server.http + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.headers.get("www-authenticate", "")

    status, text = ask("/metrics", f"Bearer {tokened.issuer.token(now=now)}")
    assert (status, "headrace_" in text) == (200, True)
    assert ask("/metrics", f"bearer {tokened.issuer.token('joe', now=now)}")[0] == 403
    for wrong in (tokened.issuer.token(now=now - 7_200), "x", ""):
        status, challenge = ask("/metrics", f"Bearer {wrong}")
        assert (status, 'error="invalid_token"' in challenge) == (401, True)
    assert ask("/", f"Bearer {tokened.issuer.token(now=now)}")[0] == 200


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "add --set sasl.oauthbearer.jwks.endpoint.url="),
        ({"sasl_oauthbearer_jwks_endpoint_url": "file:///nowhere/keys.json"}, "No such file"),
        ({"sasl_oauthbearer_jwks_endpoint_url": "http://example.org/keys"}, "use https"),
    ],
)
def test_a_start_without_keys_is_refused(given: dict[str, Any], why: str) -> None:
    with (
        pytest.raises(StartError, match=why),
        InProcessServer(listeners="SASL_PLAINTEXT://127.0.0.1:0", sasl_enabled_mechanisms="OAUTHBEARER", **given),
    ):
        pass
