"""No secret is in a log, a response or the list of processes, for any successful or failed login."""

import base64
import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import redis
from scramp import ScramClient
from tests.harness.issuer import AUDIENCE, Issuer
from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from headrace.testing import Server

PASSWORD, WRONG, TOKEN, WRONG_TOKEN = "the-first-password", "a-wrong-password", "an-auth-token", "a-wrong-token"
POOL_USER = "tenancy/jane@example.org/ocid1.streampool.oc1.local.default"
SIGNATURE = "c2VjcmV0LXNpZ25hdHVyZS1vZi1hLXJlcXVlc3Q="
SALT, SALTED = b"a-salt-of-16-byt", b"a-salted-password-of-32-bytes-xx"


class Attempts:
    """Logins, and all that was answered to them."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.answers: list[str] = []

    def http(self, path: str, headers: dict[str, str], body: bytes | None = None) -> None:
        request = urllib.request.Request(f"{self.server.http}{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.answers.append(f"{answer.headers}{answer.read().decode()}")
        except urllib.error.HTTPError as error:
            self.answers.append(f"{error.headers}{error.read().decode()}")

    def kafka(self, mechanism: str, *tokens: Any, address: str | None = None) -> tuple[Wire, int]:
        """Send tokens, functions of the answer before; the connection, and the error code of the last answer."""
        wire = Wire(address or self.server.kafka)
        self.answers.append(repr(wire.ask(SaslHandshakeRequest(mechanism=mechanism), 1)))
        heard, code = "", 0
        for each in tokens:
            token = each(heard) if callable(each) else each
            answer = wire.ask(SaslAuthenticateRequest(auth_bytes=token.encode()), 2)
            heard, code = bytes(answer.auth_bytes).decode(), answer.error_code
            # What SCRAM sends is meant for this client.
            self.answers.append(repr(answer.error_message))
            if code:
                break
        return wire, code

    def scram(self, name: str, password: str) -> int:
        client = ScramClient(["SCRAM-SHA-256"], name, password)

        def final(heard: str) -> str:
            client.set_server_first(heard)
            return str(client.get_client_final())

        wire, code = self.kafka("SCRAM-SHA-256", client.get_client_first(), final)
        wire.close()
        return code


def basic(name: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def test_credentials_appear_nowhere(tmp_path: Path) -> None:
    (tmp_path / "first").write_text(f"admin:{PASSWORD}\n")
    (tmp_path / "keys").mkdir()
    issuer, stranger = Issuer(), Issuer()
    bearer, expired, forged = issuer.token("joe"), issuer.token("joe", exp=1), stranger.token("joe")
    (tmp_path / "tokens").write_text(f"tenancy/jane@example.org {TOKEN}\n")
    arguments = [
        "--log-level", "debug", "--bootstrap-user", str(tmp_path / "first"),
        "--set", "listeners=SASL_PLAINTEXT://127.0.0.1:0", "--set", "connection.failed.authentication.delay.ms=1",
        "--set", "oci.auth=verify", "--set", f"oci.auth.keys={tmp_path / 'keys'}",
        "--set", f"oci.auth.tokens={tmp_path / 'tokens'}",
        "--set", "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        "--set", f"sasl.oauthbearer.jwks.endpoint.url={issuer.write(tmp_path / 'jwks.json')}",
        "--set", f"sasl.oauthbearer.expected.audience={AUDIENCE}",
    ]  # fmt: skip
    with Server(tmp_path / "data", arguments) as server:
        made = Attempts(server)
        admin, code = made.kafka("PLAIN", f"\0admin\0{PASSWORD}")
        assert code == Code.NONE
        upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
            name="jane", mechanism=1, iterations=4096, salt=SALT, salted_password=SALTED
        )
        made.answers += (
            repr(admin.ask(AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion]), 0)),
            repr(admin.ask(DescribeUserScramCredentialsRequest(users=None), 0)),
        )
        assert made.scram("admin", PASSWORD) == Code.NONE
        assert made.scram("admin", WRONG) == Code.SASL_AUTHENTICATION_FAILED
        for token, refused in ((bearer, False), (expired, True), (forged, True)):
            message = f"n,,\x01auth=Bearer {token}\x01\x01"
            wire, code = made.kafka("OAUTHBEARER", *([message, "\x01"] if refused else [message]))
            wire.close()
            assert code == (Code.SASL_AUTHENTICATION_FAILED if refused else Code.NONE)
            made.http("/metrics", {"authorization": f"Bearer {token}"})
        wire, code = made.kafka("PLAIN", f"\0{POOL_USER}\0{TOKEN}")
        wire.close()
        assert code == Code.NONE
        for token in (f"\0admin\0{WRONG}", f"\0{POOL_USER}\0{WRONG_TOKEN}"):
            wire, code = made.kafka("PLAIN", token)
            wire.close()
            assert code == Code.SASL_AUTHENTICATION_FAILED
        made.http("/metrics", basic("admin", PASSWORD))
        made.http("/metrics", basic("admin", WRONG))
        made.http("/metrics", {"authorization": f"Bearer {WRONG_TOKEN}"})
        made.http("/20180418/streams", basic("admin", WRONG) | {"opc-request-id": "x"})
        signed = f'Signature version="1",keyId="t/u/f",algorithm="rsa-sha256",headers="date",signature="{SIGNATURE}"'
        made.http("/20180418/streams", {"authorization": signed, "date": "Thu, 05 Jan 2034 21:31:40 GMT"})
        form = urllib.parse.urlencode({"name": "admin", "password": WRONG}).encode()
        made.http("/login", {"origin": server.http, "content-type": "application/x-www-form-urlencoded"}, form)
        with redis.Redis.from_url(server.storage) as store:
            [key] = [key for key in store.scan_iter("*") if key.endswith(b":users")]
            kept = [json.loads(value) for value in store.hgetall(key).values()]
        admin.close()
        server.logged("login refused")
        server.logged("logged in")
        listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        log = server.log()
    credentials = [text for each in kept for text in each.values() if isinstance(text, str)]
    assert len(credentials) >= 9  # three of each: a salt and two keys
    secrets = [PASSWORD, WRONG, TOKEN, WRONG_TOKEN, SIGNATURE, *credentials]
    # Who has a signature has the token.
    secrets += [part for token in (bearer, expired, forged) for part in (token, token.rpartition(".")[2])]
    for text in (SALTED, SALT):
        secrets += [text.decode(), base64.b64encode(text).decode(), text.hex()]
    secrets += [basic("admin", text)["authorization"].removeprefix("Basic ") for text in (PASSWORD, WRONG)]
    for place, found in (("log", log), ("answers", "\n".join(made.answers)), ("processes", listed)):
        assert [secret for secret in secrets if secret in found] == [], place
