"""Groups of native topics while Redis can be read and takes no writes: its disk is full, or its replicas are gone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.harness.member import Member
from tests.harness.redis import RedisServer, debian_redis_program, valkey_program
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.testing import Server, server

from .conftest import Link, add, offsets_of

TOPIC, STREAM = "t", "headrace:t:0"
ROOM = 300
"""Bytes of two records, and not of three."""
Refuse = Callable[[Link, bool], None]
"""Have Redis take no writes, or take them again."""


def by_its_disk(link: Link, refuses: bool) -> None:
    dump = Path(link.config_get("dir")["dir"]) / "dump.rdb"
    if not refuses:
        link.config_set("save", "")
        return
    dump.mkdir()
    link.config_set("save", "3600 1")
    link.bgsave()
    wait_for(lambda: link.info("persistence")["rdb_last_bgsave_status"] == "err", "the disk to be found unwritable")


def by_its_replicas(link: Link, refuses: bool) -> None:
    link.config_set("min-replicas-to-write", int(refuses))


@pytest.fixture(params=["valkey", pytest.param("debian redis", marks=pytest.mark.apt)])
def store(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(valkey_program() if request.param == "valkey" else debian_redis_program()) as started:
        yield started


@pytest.fixture
def link(store: RedisServer) -> Iterator[Link]:
    with redis.Redis.from_url(store.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def running(store: RedisServer) -> Iterator[Server]:
    with server(redis=store.url, num_partitions=1, group_initial_rebalance_delay_ms=0) as started:
        with Wire(started.kafka) as wire:
            wire.create(TOPIC, headrace_storage="native")
        yield started


def pending(link: Link, group: str) -> list[tuple[str, str]]:
    found: Any = link.xpending_range(STREAM, group, "-", "+", 100)
    return [(each["message_id"], each["consumer"]) for each in found]


@pytest.mark.parametrize("refuse", [by_its_disk, by_its_replicas])
def test_a_member_reads_on_and_is_given_what_it_read_once_redis_takes_writes(
    running: Server, link: Link, refuse: Refuse
) -> None:
    """A program in the group is not given what the member has in hand by then, nor is it lost with the member."""
    offsets = add(link, STREAM, 7)
    with Member(running.kafka, "g", TOPIC, client_id="one") as reader:
        reader.join()
        found = offsets_of(reader, 0, partition_max_bytes=ROOM)
        assert found == offsets[: len(found)]
        refuse(link, True)
        while found[-1] < offsets[-1]:
            found += offsets_of(reader, found[-1] + 1, partition_max_bytes=ROOM)
        assert found == offsets
        assert offsets_of(reader, offsets[-1] + 1, min_bytes=1, max_wait_ms=300) == []
        refuse(link, False)
        assert offsets_of(reader, offsets[-1] + 1) == []
        assert pending(link, "g") == [(f"{1_000 + n}-0", reader.member_id) for n in range(7)]
        assert link.xreadgroup("g", "program", {STREAM: ">"}) == []
        more = add(link, STREAM, 1, 3_000)
        assert offsets_of(reader, offsets[-1] + 1) == more
        assert reader.commit(offsets[4]) == 0
        reader.leave()
    with Member(running.kafka, "g", TOPIC, client_id="two") as other:
        other.join()
        assert offsets_of(other, offsets[4]) == [*offsets[4:], *more]


@pytest.mark.parametrize("refuse", [by_its_disk, by_its_replicas])
def test_a_member_that_has_not_begun_gets_errors_until_redis_takes_writes(
    running: Server, link: Link, refuse: Refuse
) -> None:
    """The Redis group would be created at the member's later offset, without pending entries of its reads."""
    offsets = add(link, STREAM, 3)
    with Member(running.kafka, "g", TOPIC, client_id="one") as reader:
        reader.join()
        refuse(link, True)
        assert reader.fetch(0).error_code == Code.KAFKA_STORAGE_ERROR
        refuse(link, False)
        assert offsets_of(reader, 0) == offsets
