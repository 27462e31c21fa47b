"""What the guides to security show is run: from nothing to a server with TLS and users, and a client that logs in."""

import datetime as dt
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from tests.harness.issuer import Issuer
from tests.harness.pages import Shell, guides, lines, steps

from headrace.security.tls.files import create
from headrace.testing import Server

GUIDE = guides("security", "quotas")
SAID = "127.0.0.1:9093"


def test_the_way_from_nothing_to_a_client_that_logs_in(tmp_path: Path) -> None:
    chosen = list(steps(GUIDE))
    (at,) = (number for number, (command, _) in enumerate(chosen) if command.startswith("headrace serve"))
    for command, promised in chosen[:at]:
        ended = subprocess.run(
            ["bash", "-ec", command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
        assert lines(ended.stdout) == lines(promised)
    # Tests listen on loopback only, and on free ports.
    serve = chosen[at][0].replace("\\\n", " ").replace("0.0.0.0:9093", "127.0.0.1:0")
    arguments = [
        each.replace("certificates/", f"{tmp_path}/certificates/").replace("first-user", f"{tmp_path}/first-user")
        if each != "--bootstrap-user"
        else each
        for each in shlex.split(serve)[2:]
    ]
    with Server(tmp_path / "data", arguments) as started:
        page = GUIDE.replace(SAID, started.kafka)
        shell = Shell(tmp_path, started, page)
        rest = list(steps(page))[at + 1 :]
        assert [lines(shell.run(command)) for command, _ in rest] == [lines(output) for _, output in rest]
        assert len(rest) == 10
        for name in ("first-user", "jane.password"):
            assert (tmp_path / name).read_text().strip().rpartition(":")[2] not in started.log()


def test_the_tokens_of_the_guide_let_in(tmp_path: Path) -> None:
    page = guides("oauth")
    (settings,) = re.findall(r"^```properties\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    made = create(tmp_path / "certificates", (), "client", dt.datetime.now(dt.UTC))
    # The guide's issuer and audience are those of this one; its keys lie in a file here.
    issuer = Issuer()
    settings = settings.replace("https://login.example.org/keys", issuer.write(tmp_path / "keys.json"))
    given = ["listeners=SASL_SSL://127.0.0.1:0", f"ssl.keystore.location={made.server}", *settings.split()]
    with Server(tmp_path / "data", [word for line in given for word in ("--set", line)]) as started:
        program = program.replace("broker.example.org:9093", started.kafka).replace("ca.pem", str(made.authority))
        token = issuer.token("jane")
        names: dict[str, Any] = {"Producer": Producer, "token": token, "expires": time.time() + 3600}
        exec(compile(program, "the guide", "exec"), names)
        names["producer"].produce("greetings", b"hello by token")
        assert names["producer"].flush(60) == 0
        asked = urllib.request.Request(f"{started.http}/metrics", headers={"authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert answer.status == 200
        assert token not in started.log()


def test_the_listeners_of_the_guide_take_logins_and_certificates_of_partners(tmp_path: Path) -> None:
    (settings,) = re.findall(r"^```properties\n(.*?)^```$", guides("listeners"), re.MULTILINE | re.DOTALL)
    now = dt.datetime.now(dt.UTC)
    own, partners = (create(tmp_path / name, (), "client", now) for name in ("certificates", "partners"))
    (tmp_path / "first-user").write_text("jane:a-password")
    settings = re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", settings)
    settings = re.sub(r"(certificates|partners)/", rf"{tmp_path}/\1/", settings)
    arguments = [word for line in settings.split() for word in ("--set", line)]
    with Server(tmp_path / "data", [*arguments, "--bootstrap-user", str(tmp_path / "first-user")]) as started:
        common = {"ssl.ca.location": str(own.authority), "log_level": 0}
        user = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "jane", "sasl.password": "a-password"}
        partner = {"ssl.certificate.location": str(partners.client), "ssl.key.location": str(partners.client)}
        for address, settings_of in (
            (started.kafka, {"security.protocol": "SASL_SSL", **user}),
            (started.listeners["PARTNERS"], {"security.protocol": "SSL", **partner}),
        ):
            producer = Producer({"bootstrap.servers": address, **common, **settings_of})
            producer.produce("greetings", b"hello")
            assert producer.flush(60) == 0
