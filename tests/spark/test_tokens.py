"""Spark's Kafka client logs in by OAUTHBEARER, with a token from a file that another program refreshes."""

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.issuer import AUDIENCE, Issuer

from headrace.client import options
from headrace.client.cluster import Cluster
from headrace.client.errors import LoginRefused, OptionError
from headrace.testing import InProcessServer

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
RETRIEVER = "FileJwtRetriever"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


class Trusting(msgspec.Struct):
    """A server that accepts clients with a token."""

    server: InProcessServer
    issuer: Issuer

    def options(self, file: Path, **more: str) -> dict[str, str]:
        """What a job is given."""
        return {
            "kafka.bootstrap.servers": self.server.listeners["TOKENS"],
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.jaas.config": MODULE,
            "kafka.sasl.oauthbearer.token.endpoint.url": f"file://{quote(str(file))}",
        } | {f"kafka.{name.replace('_', '.')}": text for name, text in more.items()}

    def cluster(self, file: Path) -> Cluster:
        found = options.parse(self.options(file))
        assert found is not None
        return Cluster(found)


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trusting]:
    issuer = Issuer()
    with InProcessServer(
        listeners="PLAINTEXT://127.0.0.1:0,TOKENS://127.0.0.1:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,TOKENS:SASL_PLAINTEXT",
        sasl_enabled_mechanisms="OAUTHBEARER",
        sasl_oauthbearer_jwks_endpoint_url=issuer.write(tmp_path_factory.mktemp("keys") / "keys.json"),
        sasl_oauthbearer_expected_audience=AUDIENCE,
        connection_failed_authentication_delay_ms=0,
    ) as running:
        admin = AdminClient({"bootstrap.servers": running.kafka})
        admin.create_topics([NewTopic("flights", 2)])["flights"].result(60)
        yield Trusting(running, issuer)


def test_the_token_is_read_for_each_connection(trusting: Trusting, tmp_path: Path) -> None:
    file = tmp_path / "a token"
    # Tests move the server's clock on.
    expires = int(time.time()) + 10 * 3_600
    file.write_text(trusting.issuer.token("etl", exp=expires) + "\n")
    cluster = trusting.cluster(file)
    assert cluster.topics(["flights"])["flights"].partitions == (0, 1)
    cluster.close()
    file.write_text(trusting.issuer.token("etl", aud="elsewhere"))
    with pytest.raises(LoginRefused, match=r"refused the token in .*a token: ") as refused:
        cluster.topics(["flights"])
    assert file.read_text() not in str(refused.value)
    file.write_text(trusting.issuer.token("etl", exp=expires))
    assert cluster.topics(["flights"])


@pytest.mark.parametrize(("content", "told"), [("two words", "holds no token"), ("", "holds no token")])
def test_a_file_without_a_token_is_reported_and_not_shown(
    trusting: Trusting, tmp_path: Path, content: str, told: str
) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(LoginRefused, match=told) as refused:
        trusting.cluster(file).topics(["flights"])
    assert "two words" not in str(refused.value)
    file.unlink()
    with pytest.raises(LoginRefused, match="token cannot be read: No such file or directory"):
        trusting.cluster(file).topics(["flights"])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"sasl_oauthbearer_token_endpoint_url": "https://login.example.org/token"}, "no other address is asked"),
        ({"sasl_oauthbearer_token_endpoint_url": "file://elsewhere/token"}, "no other address is asked"),
        ({"sasl_oauthbearer_token_endpoint_url": ""}, "file:///PATH of a token"),
        ({"sasl_jaas_config": MODULE[:-1] + ' unsecuredLoginStringClaim_sub="etl";'}, "refuse unsigned tokens"),
        ({"sasl_jaas_config": "a.PlainLoginModule required;"}, "must name OAuthBearerLoginModule for OAUTHBEARER"),
        ({"sasl_login_callback_handler_class": "a.MyHandler"}, "must name OAuthBearerLoginCallbackHandler"),
    ],
)
def test_a_path_that_is_not_a_file_is_refused(
    trusting: Trusting, tmp_path: Path, given: dict[str, str], told: str
) -> None:
    with pytest.raises(OptionError, match=told):
        options.parse(trusting.options(tmp_path / "token", **given))


def test_kafkas_own_words_for_it_are_taken(trusting: Trusting, tmp_path: Path) -> None:
    given = trusting.options(tmp_path / "token", sasl_login_callback_handler_class=HANDLER)
    given["kafka.sasl.oauthbearer.jwt.retriever.class"] = (
        "org.apache.kafka.common.security.oauthbearer.FileJwtRetriever"
    )
    del given["kafka.sasl.jaas.config"]
    found = options.parse(given)
    assert found is not None
    assert (found.mechanism, found.token_file) == ("OAUTHBEARER", str(tmp_path / "token"))
