"""Debian's kcat, an older librdkafka than Python's, logs in by a password or a certificate."""

import datetime as dt
import shutil
import subprocess
from collections.abc import Iterator

import msgspec
import pytest

from headrace.testing import InProcessServer
from headrace.tls.files import Made, create

pytestmark = pytest.mark.apt

PASSWORD = "päss wörd, =2C"


class Secured(msgspec.Struct):
    """A server with a user, and certificates of its authority and of a foreign one."""

    server: InProcessServer
    own: Made
    foreign: Made

    def kcat(self, listener: str, settings: dict[str, object], *arguments: str, sent: str = "") -> tuple[int, str, str]:
        """Status, output and what it says."""
        program = shutil.which("kcat")
        assert program is not None, "no kcat on this machine: apt-get install kcat"
        options = [text for name, value in settings.items() for text in ("-X", f"{name}={value}")]
        ended = subprocess.run(
            [program, "-b", self.server.listeners[listener], *options, *arguments],
            input=sent, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return ended.returncode, ended.stdout, ended.stderr

    def tls(self, certificate: Made | None = None) -> dict[str, object]:
        found: dict[str, object] = {"security.protocol": "SSL", "ssl.ca.location": self.own.authority}
        if certificate is not None:
            found |= {"ssl.certificate.location": certificate.client, "ssl.key.location": certificate.client}
        return found

    def login(self, mechanism: str, password: str = PASSWORD) -> dict[str, object]:
        return self.tls() | {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": "jane",
            "sasl.password": password,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("certificates")
    now = dt.datetime.now(dt.UTC)
    own, foreign = (create(folder / name, (), "jane", now) for name in ("own", "foreign"))
    first = folder / "first"
    first.write_text(f"jane:{PASSWORD}\n", "utf-8")
    with InProcessServer(
        bootstrap_user=first,
        listeners="PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,CERT://127.0.0.1:0",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CERT:SSL",
        ssl_keystore_location=own.server,
        ssl_truststore_location=own.authority,
        ssl_client_auth="requested",
        connection_failed_authentication_delay_ms=0,
    ) as running:
        yield Secured(running, own, foreign)


def test_who_has_a_password_writes_and_reads(secured: Secured) -> None:
    status, _, said = secured.kcat("SASL_SSL", secured.login("PLAIN"), "-P", "-t", "plain", sent="one\ntwo\n")
    assert status == 0, said
    status, read, said = secured.kcat("SASL_SSL", secured.login("PLAIN"), "-C", "-t", "plain", "-e", "-q")
    assert (status, sorted(read.split())) == (0, ["one", "two"]), said
    status, _, said = secured.kcat("SASL_SSL", secured.login("PLAIN", "wrong"), "-L", "-m", "5")
    assert (status != 0, "uthentication failed" in said) == (True, True), said


def test_who_has_a_certificate_writes_and_reads(secured: Secured) -> None:
    status, _, said = secured.kcat("CERT", secured.tls(secured.own), "-P", "-t", "certified", sent="one\n")
    assert status == 0, said
    status, read, said = secured.kcat("CERT", secured.tls(secured.own), "-C", "-t", "certified", "-e", "-q")
    assert (status, read) == (0, "one\n"), said
    assert secured.kcat("CERT", secured.tls(secured.foreign), "-L", "-m", "5")[0] != 0
    assert secured.kcat("CERT", secured.tls() | {"ssl.ca.location": secured.foreign.authority}, "-L", "-m", "5")[0] != 0
