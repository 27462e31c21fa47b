"""Native topics on a real server, on the embedded Valkey and on Debian's Redis."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from tests.harness.member import Member
from tests.harness.redis import RedisServer, debian_redis_program
from tests.harness.wire import Wire

from headrace.storage.layout.native import offset_at
from headrace.testing import Server, server

Link = Any
"""A redis-py client, whose types say too little."""


def add(link: Link, stream: str, count: int, first_ms: int = 1_000) -> list[int]:
    """Entries of a Redis program, one per millisecond; their offsets."""
    return [offset_at(link.xadd(stream, {"value": f"v{n}"}, id=f"{first_ms + n}-0").encode()) for n in range(count)]


def offsets_of(reader: Member, offset: int, **limits: int) -> list[int]:
    return [record.offset for record in reader.read(offset, **limits)]


def last_delivered(link: Link, stream: str, group: str) -> str:
    found: str = next(one for one in link.xinfo_groups(stream) if one["name"] == group)["last-delivered-id"]
    return found


@pytest.fixture(scope="session")
def on_valkey() -> Iterator[Server]:
    with server(num_partitions=1, group_initial_rebalance_delay_ms=0) as started:
        yield started


@pytest.fixture(scope="session")
def on_debian_redis() -> Iterator[Server]:
    with (
        RedisServer(debian_redis_program()) as store,
        server(redis=store.url, num_partitions=1, group_initial_rebalance_delay_ms=0) as started,
    ):
        yield started


@pytest.fixture(params=["on_valkey", pytest.param("on_debian_redis", marks=pytest.mark.apt)])
def running(request: pytest.FixtureRequest) -> Server:
    """A server that all tests of this folder share; each has topics and groups of its own."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def link(running: Server) -> Iterator[Link]:
    """A Redis program."""
    with redis.Redis.from_url(running.storage, decode_responses=True) as client:
        yield client


@pytest.fixture
def wire(running: Server) -> Iterator[Wire]:
    """A Kafka client that is in no group."""
    with Wire(running.kafka, client_id="alone") as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest, wire: Wire) -> str:
    """A native topic of the test's own, with one partition."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return wire.create(name, headrace_storage="native")


@pytest.fixture
def stream(topic: str) -> str:
    """The Redis key of its partition."""
    return f"headrace:{topic}:0"


MakeMember = Callable[..., Member]


@pytest.fixture
def member(running: Server, topic: str) -> Iterator[MakeMember]:
    """Makes members of the group that is named like the topic, each with a client id of its own."""
    with contextlib.ExitStack() as stack:
        made = 0

        def make(group: str | None = None, client_id: str | None = None) -> Member:
            nonlocal made
            made += 1
            name = client_id or f"{topic}-client-{made}"
            return stack.enter_context(Member(running.kafka, group or topic, topic, client_id=name))

        yield make
