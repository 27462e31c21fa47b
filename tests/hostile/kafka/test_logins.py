"""Failed logins, more than 10 000 a minute, beside a client that pings: they hurt nobody, and fill no log."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.kafka.codec.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from headrace.kafka.errors import Code
from headrace.testing.process import Server
from tests.harness.raw import RawClient
from tests.hostile.http.bystander import Bystander

FAILED, AT_A_TIME = 600, 40
MOST_LINES = 40
"""Ten of each try, and what stands beside them."""


def test_failed_logins_hurt_nobody(tmp_path: Path) -> None:
    (tmp_path / "first").write_text("admin:a-password\n")
    arguments = [
        "--bootstrap-user", str(tmp_path / "first"),
        "--set", "listeners=PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    ]  # fmt: skip
    with Server(tmp_path / "data", arguments) as started:
        address = started.listeners["SASL_PLAINTEXT"]

        def fail(number: int) -> None:
            with RawClient(address, timeout_s=60) as wire:
                wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
                answer = wire.ask(SaslAuthenticateRequest(auth_bytes=f"\0admin\0wrong-{number}".encode()), 2)
                assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED

        def attack() -> None:
            with ThreadPoolExecutor(AT_A_TIME) as threads:
                list(threads.map(fail, range(FAILED)))

        with contextlib.closing(Bystander(started, http=False)) as bystander:
            print(bystander.harmless(attack))
        lines = [line for line in started.logged("login refused").splitlines() if "login refused" in line]
        assert len(lines) <= MOST_LINES
