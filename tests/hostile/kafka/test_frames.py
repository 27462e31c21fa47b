"""SASL frames fuzzed on the wire, next to a client that pings: none gains access, and no other client is affected."""

import contextlib
import hashlib
import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import msgspec
import pytest

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.kafka import apis
from headrace.protocol.messages import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from headrace.testing import Server, server
from tests.harness.issuer import AUDIENCE, Issuer
from tests.harness.wire import Wire
from tests.hostile.http.bystander import Bystander
from tests.hostile.kafka.talking import MECHANISMS, Guest, astray, logged_in

apis.load()
TALKS = 800
AT_A_TIME = 8
OPEN, HIDDEN = b"a-topic-for-jane", b"a-topic-for-nobody-else"
TOPIC, LITERAL, DESCRIBE, ALLOW = 2, 3, 8, 3
ADMIN_PASSWORD, JANES_PASSWORD = "the-admins-password", "janes-password"


class Guests(msgspec.Struct):
    """A server and its clients."""

    server: Server
    jane: Guest
    """Clients that may see one topic of two."""
    strangers: list[Guest]
    """Clients without valid credentials."""

    @property
    def address(self) -> str:
        return self.server.kafka

    def talk(self, seed: str) -> None:
        """One login that goes wrong, and nothing comes of it that should not."""
        chance = Random(seed)
        guest = chance.choice([self.jane, *self.strangers])
        heard = astray(self.address, guest, chance)
        assert HIDDEN not in heard, seed
        # An accepted client receives at least the server's address.
        assert guest is self.jane or b"127.0.0.1" not in heard, seed

    def all_is_well(self) -> None:
        """Jane logs in by every mechanism, and sees what is hers, and no more."""
        for mechanism, bare in itertools.product(MECHANISMS, (False, True)):
            heard = logged_in(self.address, self.jane, mechanism, bare=bare)
            assert (OPEN in heard, HIDDEN in heard) == (True, False), (mechanism, bare)


def _prepare(address: str) -> None:
    """Topics, a user, and a right of hers; by the first user."""
    with Wire(address) as wire:
        wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        proof = f"\0admin\0{ADMIN_PASSWORD}".encode()
        assert wire.ask(SaslAuthenticateRequest(auth_bytes=proof), 2).error_code == 0
        for topic in (OPEN, HIDDEN):
            wire.create(topic.decode())
        salt = b"a-salt-of-16-byt"
        salted = [hashlib.pbkdf2_hmac(each, JANES_PASSWORD.encode(), salt, 4096) for each in ("sha256", "sha512")]
        upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
        made = [
            upsertion(name="jane", mechanism=number, iterations=4096, salt=salt, salted_password=each)
            for number, each in enumerate(salted, 1)
        ]
        for each in made:
            answer = wire.ask(AlterUserScramCredentialsRequest(deletions=[], upsertions=[each]), 0)
            assert [result.error_code for result in answer.results] == [0]
        creation = CreateAclsRequest.AclCreation(
            resource_type=TOPIC,
            resource_name=OPEN.decode(),
            resource_pattern_type=LITERAL,
            principal="User:jane",
            host="*",
            operation=DESCRIBE,
            permission_type=ALLOW,
        )
        answer = wire.ask(CreateAclsRequest(creations=[creation]), 3)
        assert [result.error_code for result in answer.results] == [0]


@pytest.fixture
def guests(tmp_path: Path) -> Iterator[Guests]:
    (tmp_path / "first").write_text(f"admin:{ADMIN_PASSWORD}\n")
    (tmp_path / "keys").mkdir()
    issuer, other = Issuer(), Issuer()
    arguments = ["--bootstrap-user", str(tmp_path / "first")]
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.oauthbearer.jwks.endpoint.url": issuer.write(tmp_path / "keys.json"),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "oci.auth": "verify",
        "oci.auth.keys": tmp_path / "keys",
        "connection.failed.authentication.delay.ms": 0,
    }
    arguments += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with server(arguments=arguments) as started:
        _prepare(started.kafka)
        jane = Guest("jane", JANES_PASSWORD, issuer.token("jane"))
        strangers = [Guest(name, f"not-{name}s", other.token(name)) for name in ("jane", "admin", "nobody")]
        yield Guests(started, jane, strangers)
        assert "Traceback" not in started.log()


def test_invalid_logins_are_rejected_without_harm(guests: Guests) -> None:
    guests.all_is_well()
    seed, numbers = random.getrandbits(32), itertools.count()  # by the seed that pytest-randomly prints
    with (
        contextlib.closing(Bystander(guests.server, http=False)) as bystander,
        ThreadPoolExecutor(AT_A_TIME) as threads,
    ):

        def attack() -> None:
            seeds = [f"{seed} {number}" for number in itertools.islice(numbers, TALKS)]
            list(threads.map(guests.talk, seeds))

        print(bystander.harmless(attack))
    guests.all_is_well()
