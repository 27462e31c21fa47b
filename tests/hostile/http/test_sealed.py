"""Requests with a valid HMAC signature, as from another broker, affect no other client, whatever they contain.

A broker forwards a client's body unchanged, and one broker may be older than the other.
"""

import contextlib
import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
import redis

from headrace.http.peers.peers import SEALS, SECRETS
from headrace.http.peers.signature import HEADER, PeerSigner
from headrace.oci.api.publisher import MOST_BATCH
from headrace.oci.api.registry import OPERATIONS, Nothing, Operation
from headrace.oci.forwarding.append_router import PATH
from headrace.records.build import build
from headrace.security.access.principal import Principal
from headrace.security.access.required_acls import ResourceType
from headrace.storage.layout.keys import Keyspace
from headrace.testing import server
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire
from tests.hostile.http import batches
from tests.hostile.http.attacking import BASE, COMPARTMENT, Headers, Target, many, request, send_what_it_takes
from tests.hostile.http.bystander import Bystander
from tests.hostile.http.corpus import MIB, bodies, paths, queries

TOPIC = "sealed"
CARRIED = [
    each for each in OPERATIONS.values() if any(rule.type is ResourceType.GROUP for rule in each.needs)
]  # those that brokers bring each other
_BEGUN = 32 << 10
_BODY_LENGTH_AT, _COVERED_FROM, _COUNT_AT = 8, 16, 57


class Sealed(Target, frozen=True, kw_only=True):
    """A broker as another one asks it."""

    seals: PeerSigner
    id: str
    """Of the topic."""

    def seal(self, method: str, path: str, body: bytes) -> dict[str, str]:
        """The header of a request."""
        now_ms = int(time.time() * 1000)
        return {HEADER: self.seals.seal(method, path.encode("latin-1"), body, Principal("jane", "tenancy"), now_ms)}

    def ask(self, method: str, path: str, body: bytes = b"", headers: Headers = None) -> tuple[int, bytes]:
        """As every target, under a seal."""
        return super().ask(method, path, body, {**(headers or {}), **self.seal(method, path, body)})

    def append(self, body: bytes, **place: object) -> int:
        """Put a batch; the status, which is not of a failure of the server's own, and comes with a reason."""
        told = {"cluster": "default", "topic": TOPIC, "id": self.id, "partition": 0} | place
        query = urlencode({name: value for name, value in told.items() if value is not None})
        status, answer = self.ask("POST", f"{PATH}?{query}", body)
        assert status in {200, 400, 409, 421}, (status, place, body[:100], answer[:300])
        assert json.loads(answer).keys() == ({"base_offset", "time_ms"} if status == 200 else {"error", "message"})
        assert len(answer) < 10_000
        return status


def _wrong_batches() -> Iterator[bytes]:
    """Nothing of which is a batch that a log may have."""
    good = bytes(build([(None, b"value", 1_000, ())] * 3))
    yield from (
        b"",
        b"\0",
        good[:12],
        good[:60],
        good[:61],
        good[:-1],
        good + b"\0",
        good + good,
        bytes(61),
        bytes(MIB),
    )
    for at, number in (
        (_BODY_LENGTH_AT, -1),
        (_BODY_LENGTH_AT, 1 << 31 - 1),
        (_BODY_LENGTH_AT, 0),
        (_COUNT_AT, -1),
        (_COUNT_AT, 1 << 31 - 1),
    ):
        changed = bytearray(good)
        struct.pack_into(">i", changed, at, number)
        yield bytes(changed)
    for at in range(_COVERED_FROM, len(good), 4):
        if good[at : at + 4] != b"\xff" * 4:
            yield good[:at] + b"\xff" * 4 + good[at + 4 :]
    yield bytes(MOST_BATCH)


PLACES: dict[str, tuple[object, ...]] = {
    "cluster": (None, ""),
    "id": (None, "", "0" * 32, "x" * 20_000),
    "partition": (None, -1, 1, "x", "", "1e3", "9" * 5_000, 1 << 63),
}
BY_THE_WAY: dict[str, tuple[object, ...]] = {
    "cluster": ("nowhere", "x" * 20_000),
    "topic": (None, "", "nowhere", "../x", "x" * 20_000, "\0", b"\xff\xfe"),
}
"""Where the topic was when its batch was sent. The id shows where it is now."""


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sealed, Bystander]]:
    """A broker that accepts only brokers of its keyspace, and its bystander."""
    keys: Path = tmp_path_factory.mktemp("keys")
    with RedisServer() as storage, server(redis=storage.url, oci_auth="verify", oci_auth_keys=keys) as started:
        with redis.Redis.from_url(storage.url) as kept:
            secret = kept.hget(Keyspace().documents(SECRETS), SEALS)
        assert isinstance(secret, bytes)
        with Wire(started.kafka) as wire:
            wire.create(TOPIC)
            [topic] = wire.metadata(TOPIC).topics
        target = Sealed(
            http=started.http.removeprefix("http://"),
            kafka=started.kafka,
            streams={},
            cursors={},
            open=True,
            seals=PeerSigner(secret),
            id=topic.topic_id.hex,
        )
        made = target.done("POST", "/streams", {"name": "s", "partitions": 1, "compartmentId": COMPARTMENT})
        target.streams["empty"] = made["id"]
        with contextlib.closing(Bystander(started)) as bystander:
            yield target, bystander
        assert "Traceback" not in started.log()


def test_invalid_batches_are_rejected_without_harm(sealed: tuple[Sealed, Bystander]) -> None:
    target, bystander = sealed
    good = bytes(build([(None, b"value", 1_000, ())]))
    wrong = list(_wrong_batches())

    def attack() -> None:
        assert [target.append(each) for each in wrong] == [409] * len(wrong)
        assert 200 not in [target.append(good, **{name: each}) for name, found in PLACES.items() for each in found]
        named = [target.append(good, **{name: each}) for name, found in BY_THE_WAY.items() for each in found]
        assert named == [200] * len(named)
        for batch in (batches.many_records(MIB), batches.headers(MIB), batches.zeros()):
            target.append(bytes(batch))
        assert target.append(good) == 200

    print(bystander.harmless(attack))


def test_large_endless_batches_affect_no_other_client(sealed: tuple[Sealed, Bystander]) -> None:
    target, bystander = sealed
    path = f"{PATH}?{urlencode({'cluster': 'default', 'topic': TOPIC, 'id': target.id, 'partition': 0})}"

    def attack() -> None:
        with many(target, 40) as connections:
            told = target.seal("POST", path, bytes(MOST_BATCH)) | {"content-length": str(MOST_BATCH)}
            for connection in connections:
                # As much as the kernel takes of what the server does not read yet.
                send_what_it_takes(connection, request("POST", path, b"", told) + bytes(_BEGUN))
            assert target.ask("GET", f"{BASE}/streams/{target.streams['empty']}")[0] == 200

    print(bystander.harmless(attack))


def _attacks(operation: Operation) -> Iterator[Callable[[Operation, Target], None]]:
    yield paths
    if operation.body is not None:
        yield bodies
    if operation.query is not Nothing:
        yield queries


@pytest.mark.parametrize("operation", CARRIED, ids=lambda operation: operation.name)
def test_forwarded_client_data_does_not_harm_the_next_broker(
    sealed: tuple[Sealed, Bystander], operation: Operation
) -> None:
    target, bystander = sealed
    for attack in _attacks(operation):
        print(attack.__name__, bystander.harmless(lambda attack=attack: attack(operation, target)))  # type: ignore[misc]


def test_a_seal_of_one_request_is_good_for_no_other(sealed: tuple[Sealed, Bystander]) -> None:
    target, _ = sealed
    good, other = (bytes(build([(None, value, 1_000, ())])) for value in (b"one", b"two"))
    path = f"{PATH}?{urlencode({'cluster': 'default', 'topic': TOPIC, 'id': target.id, 'partition': 0})}"
    told = target.seal("POST", path, good)
    for method, where, body in (
        ("POST", path, other),
        ("POST", path + "&x=1", good),
        ("PUT", path, good),
        ("GET", f"{BASE}/streams/{target.streams['empty']}", b""),
    ):
        assert Target.ask(target, method, where, body, told)[0] == 401
