"""More than 10,000 failed logins per minute, next to a client that pings, affect no other client and fill no log."""

import contextlib
import datetime as dt
import itertools
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from headrace.broker.admin.audit import MOST_LINES, WINDOW_MS
from headrace.client.channel import Channel, ConnectionEnded, connect
from headrace.kafka.errors import Code
from headrace.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from headrace.security.tls.files import create
from headrace.testing.process import Server
from tests.harness.issuer import AUDIENCE, Issuer
from tests.hostile.http.bystander import Bystander

AT_A_TIME = 40
TIMEOUT_S = 60
KINDS = 3
"""Of lines: one for each mechanism."""


class Target(msgspec.Struct):
    """A server, and what does not get in."""

    server: Server
    context: ssl.SSLContext
    token: str
    """Signed with a foreign key under a key id that the server knows."""

    def refused(self, mechanism: str, *tokens: str, encrypted: bool = False) -> None:
        """Try to log in; the server must reject the last token."""
        listener = "SASL_SSL" if encrypted else "SASL_PLAINTEXT"
        host, port = self.server.listeners[listener].rsplit(":", 1)
        link = connect(host, int(port), TIMEOUT_S)
        if encrypted:
            link = self.context.wrap_socket(link, server_hostname="localhost")
        with contextlib.closing(Channel(link, "guessing")) as wire:
            assert wire.ask(SaslHandshakeRequest(mechanism=mechanism), 1).error_code == 0
            *before, last = tokens
            for token in before:
                assert wire.ask(SaslAuthenticateRequest(auth_bytes=token.encode()), 2).error_code == 0
            answer = wire.ask(SaslAuthenticateRequest(auth_bytes=last.encode()), 2)
            assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED

    def guess(self, number: int) -> None:
        """Try a wrong password with PLAIN, also over TLS; a wrong proof; a foreign token; a broken handshake.

        A SCRAM client has to repeat the server's nonce, and can send an invalid proof without a password.
        """
        kind = number % 5
        if kind == 0:
            self.refused("PLAIN", f"\0admin\0wrong-{number}")
        elif kind == 1:
            self.refused("PLAIN", f"\0admin\0wrong-{number}", encrypted=True)
        elif kind == 2:
            self.refused("SCRAM-SHA-256", f"n,,n=admin,r=nonce{number}", f"c=biws,r=nonce{number},p=AAAA")
        elif kind == 3:
            self.refused("OAUTHBEARER", f"n,,\x01auth=Bearer {self.token}\x01\x01", "\x01")
        else:
            self.break_off()

    def break_off(self) -> None:
        """What is no TLS at a listener with TLS; the server closes the connection."""
        host, port = self.server.listeners["SASL_SSL"].rsplit(":", 1)
        with (
            contextlib.closing(Channel(connect(host, int(port), TIMEOUT_S), "guessing")) as wire,
            contextlib.suppress(ConnectionEnded, ConnectionError),
        ):
            wire.socket.sendall(b"\x16\x03\x01\x00\x04nope")
            while wire.socket.recv(4096):
                pass


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    (tmp_path / "first").write_text("admin:a-password\n")
    made = create(tmp_path / "certificates", (), "client", dt.datetime.now(dt.UTC))
    issuer, other = Issuer(), Issuer()
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": made.server,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": issuer.write(tmp_path / "keys.json"),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }
    arguments = ["--bootstrap-user", str(tmp_path / "first")]
    arguments += [word for name, text in settings.items() for word in ("--set", f"{name}={text}")]
    with Server(tmp_path / "data", arguments) as started:
        yield Target(started, ssl.create_default_context(cafile=made.authority), other.token("admin"))


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("many", [600, pytest.param(10_000, marks=pytest.mark.security)])
def test_failed_logins_affect_no_other_client(target: Target, many: int) -> None:
    numbers = itertools.count()

    def attack() -> None:
        begun = time.monotonic()
        with ThreadPoolExecutor(AT_A_TIME) as threads:
            list(threads.map(target.guess, itertools.islice(numbers, many)))
        print(f"{many / (time.monotonic() - begun) * 60:.0f} a minute")

    begun = time.monotonic()
    with contextlib.closing(Bystander(target.server, http=False)) as bystander:
        print(bystander.harmless(attack))
    windows = 1 + (time.monotonic() - begun) * 1000 // WINDOW_MS
    _told_in_few_lines(target.server.logged, next(numbers), windows)


def _told_in_few_lines(logged: Callable[[str], str], tried: int, windows: float) -> None:
    """Ten lines of each kind in a window; and all are counted that have been tried."""
    lines = logged("login refused").splitlines()
    told = [line for line in lines if "login refused" in line and "more of the same" not in line]
    assert len(told) <= KINDS * MOST_LINES * (windows + 1) < tried
    broken = [line for line in lines if "handshake failed" in line and "more of the same" not in line]
    assert len(broken) <= MOST_LINES * (windows + 1)
