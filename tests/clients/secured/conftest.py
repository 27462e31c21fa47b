"""Servers that the matrix logs in to: one as it should be, and such as a client must not believe."""

import base64
import datetime as dt
import gc
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.clients.secured.interface import CERTIFICATE, Login
from tests.harness.issuer import AUDIENCE, ISSUER, Issuer
from tests.harness.waiting import wait_for

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.security.tls.files import GeneratedFiles, create
from headrace.testing import InProcessServer

NAME, PASSWORD = "jane", "päss wörd, =2C"


class Secured(msgspec.Struct):
    """A server that accepts only jane, and her credentials."""

    server: InProcessServer
    own: GeneratedFiles
    foreign: GeneratedFiles
    """Of an authority that neither side believes."""
    issuer: Issuer

    def login(self, mechanism: str, listener: str = "") -> Login:
        """What gets in."""
        certified = mechanism == CERTIFICATE
        address = self.server.listeners[listener or ("CERT" if certified else "LOGIN")]
        if certified:
            return Login(address, mechanism, self.own.authority, certificate=self.own.client)
        if mechanism == "OAUTHBEARER":
            # Tests move the server's clock on.
            token = self.issuer.token(NAME, exp=int(time.time()) + 10 * 3_600)
            return Login(address, mechanism, self.own.authority, NAME, token=token)
        return Login(address, mechanism, self.own.authority, NAME, PASSWORD)

    def all_have_gone(self) -> None:
        """Wait until the server has no connections, so that no further login is logged."""
        gc.collect()  # kafka-python lets go of sockets that only this closes
        proof = base64.b64encode(f"{NAME}:{PASSWORD}".encode()).decode()
        asked = urllib.request.Request(self.server.http + "/metrics", headers={"authorization": f"Basic {proof}"})

        def gone() -> bool:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                page = answer.read().decode()
            counts = re.findall(r'^headrace_connections{listener="(?:LOGIN|CERT)"} (.*)$', page, re.MULTILINE)
            return counts == ["0", "0"]

        wait_for(gone, "the connections to end")

    def wrong(self, mechanism: str) -> Login:
        """Invalid credentials: a wrong password, another user's token, a certificate of another authority."""
        replaced = {
            "password": "wrong",
            "token": self.issuer.token(NAME, aud="elsewhere"),
            "certificate": self.foreign.client,
        }
        good = self.login(mechanism)
        return msgspec.structs.replace(good, **{name: value for name, value in replaced.items() if getattr(good, name)})


def _secured(folder: Path, made_at: dt.datetime) -> Iterator[Secured]:
    own, foreign = create(folder / "own", (), NAME, made_at), create(folder / "foreign", (), NAME, made_at)
    first = folder / "first"
    first.write_text(f"{NAME}:{PASSWORD}\n", "utf-8")
    issuer = Issuer()
    with InProcessServer(
        bootstrap_user=first,
        # Its certificate is for 127.0.0.1, but not for 127.0.0.2.
        listeners="PLAINTEXT://127.0.0.1:0,LOGIN://127.0.0.1:0,CERT://127.0.0.1:0,ELSEWHERE://127.0.0.2:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,LOGIN:SASL_SSL,CERT:SSL,ELSEWHERE:SASL_SSL",
        ssl_keystore_location=own.server,
        ssl_truststore_location=own.authority,
        ssl_client_auth="requested",
        sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        sasl_oauthbearer_jwks_endpoint_url=issuer.write(folder / "keys.json"),
        sasl_oauthbearer_expected_audience=AUDIENCE,
        sasl_oauthbearer_expected_issuer=ISSUER,
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users=f"User:{NAME};User:CN={NAME}",
        oci_auth="verify",
        oci_auth_keys=folder,
        connection_failed_authentication_delay_ms=0,
    ) as running:
        yield Secured(running, own, foreign, issuer)


@pytest.fixture(scope="package")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    yield from _secured(tmp_path_factory.mktemp("secured"), dt.datetime.now(dt.UTC))


@pytest.fixture(scope="package")
def expired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server whose certificate was good until a month ago."""
    yield from _secured(tmp_path_factory.mktemp("expired"), dt.datetime.now(dt.UTC) - dt.timedelta(days=430))
