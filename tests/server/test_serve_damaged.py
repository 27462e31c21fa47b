"""A server whose storage is damaged in many places: it starts, serves everything else, and names each place."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import redis
from tests.harness.wire import Wire, batch

from headrace.kafka.errors import Code
from headrace.testing import Server, server
from headrace.testing.process import _password

META = "headrace:{meta}"
TOPICS = "headrace:{{meta}}:topics"
Link = Any


def wrong_type(key: str) -> Callable[[Link, str], None]:
    def damage(link: Link, name: str) -> None:
        place = key.format(name=name)
        link.delete(place)
        link.set(place, "what a program has put there")

    return damage


def field(key: str, at: str, value: bytes = b"garbage \xff") -> Callable[[Link, str], None]:
    def damage(link: Link, name: str) -> None:
        link.hset(key.format(name=name), at.format(name=name), value)

    return damage


def foreign_in_use(link: Link, name: str) -> None:
    link.xadd(f"headrace:{name}:0", {"stray": "entry"})
    link.set(f"{{headrace:{name}:0}}:foreign", "x")


STATE = "{{headrace:{name}:0}}:state"
LOGS: dict[str, Callable[[Link, str], None]] = {
    "log-stream": wrong_type("headrace:{name}:0"),
    "log-state": wrong_type(STATE),
    "log-producers": wrong_type("{{headrace:{name}:0}}:producers"),
    "log-foreign": foreign_in_use,
    **{f"log-state-{each}": field(STATE, each) for each in "evboltshf"},
    "log-state-huge": field(STATE, "b", b"9" * 400),
    "log-rows": field(STATE, "l", b"1:2:3 x"),
    "log-deleted": wrong_type("headrace:{name}:0"),
    "log-deleted-state": wrong_type(STATE),
    "log-back": wrong_type(STATE),
}
"""Partitions of log topics that cannot be opened."""
NATIVES: dict[str, Callable[[Link, str], None]] = {
    "plain-stream": wrong_type("headrace:{name}:0"),
    "plain-state": wrong_type(STATE),
    "plain-deleted": wrong_type("headrace:{name}:0"),
}
ENTRIES: dict[str, Callable[[Link, str], None]] = {
    "entry-garbage": field(TOPICS, "{name}"),
    "entry-part": field(TOPICS, "{name}", b'{"name":"entry-part"}'),
    "entry-other": field(
        TOPICS,
        "{name}",
        b'{"name":"good","id":"7f000000-0000-4000-8000-000000000000","streams":["s"],"config":{},"created_ms":1}',
    ),
    "entry-config": field(
        TOPICS,
        "{name}",
        b'{"name":"entry-config","id":"7f000000-0000-4000-8000-000000000001","streams":["headrace:entry-config:0"],'
        b'"config":{"retention.ms":"soon"},"created_ms":1}',
    ),
}
"""Topics whose entry in the registry cannot be read."""
GROUPS = "headrace:group:{{default/{name}}}"
LOST_GROUPS = {
    "group-header": wrong_type(GROUPS),
    "group-members": wrong_type(f"{GROUPS}:members"),
    "group-positions": wrong_type(f"{GROUPS}:positions"),
}
PART_GROUPS = {
    "group-e": field(GROUPS, "e"),
    "group-head": field(GROUPS, "header"),
    "group-section": field(GROUPS, "balanced:good"),
    "group-member": field(f"{GROUPS}:members", "m"),
    "group-position": field(f"{GROUPS}:positions", "good:7"),
    "group-place": field(f"{GROUPS}:positions", "nowhere", b"{}"),
}
KINDS = (
    *("clusters", "users", "quotas", "group-configs"),
    *("oci.pools", "oci.streams", "oci.harnesses", "oci.requests", "oci.tokens"),
)


class Damaged(NamedTuple):
    server: Server
    link: Link
    told: str
    """What the second start has logged."""


@pytest.fixture(scope="module")
def damaged() -> Iterator[Damaged]:
    with server(num_partitions=1, auto_create_topics_enable=False) as running:
        with Wire(running.kafka) as wire:
            wire.create("good")
            wire.create("good-plain", headrace_storage="native")
            wire.produce("good", batch(b"v"))
            for name in (*LOGS, *ENTRIES):
                wire.create(name)
                wire.produce(name, batch(b"v"))
            # Its old records are in the journal, under the key that the new one has.
            wire.create("recreated")
            wire.produce("recreated", batch(b"old"))
            wire.delete("recreated")
            wire.create("recreated", headrace_storage="native")
            wire.produce("recreated", batch(b"new"))
            for name in NATIVES:
                wire.create(name, headrace_storage="native")
                wire.produce(name, batch(b"v"))
        with redis.Redis.from_url(running.storage, password=_password(running.data)) as link:
            for name in (*LOST_GROUPS, *PART_GROUPS):
                link.sadd(f"{META}:groups", name)
                position = b'{"offset":1,"leader_epoch":-1,"metadata":"","committed_ms":1}'
                link.hset(f"headrace:group:{{default/{name}}}:positions", "good:0", position)
            # What is known of producers is written down within a second.
            time.sleep(1.5)
            for name, damage in (LOGS | NATIVES | ENTRIES | LOST_GROUPS | PART_GROUPS).items():
                damage(link, name)
            for kind in KINDS:
                link.hset(f"{META}:documents:{kind}", "bad", b"garbage \xff")
            link.hset(f"{META}:deleted", "bad", b"garbage \xff")
        before = len(running.log())
        running.restart()
        with redis.Redis.from_url(running.storage, password=_password(running.data)) as link:
            yield Damaged(running, link, running.log()[before:])


def test_all_others_are_served(damaged: Damaged) -> None:
    with Wire(damaged.server.kafka) as wire:
        assert wire.produce("good", batch(b"w")).base_offset > 0
        assert wire.produce("good-plain", batch(b"w")).error_code == 0


def test_the_journal_of_a_deleted_topic_leaves_one_of_its_name_alone(damaged: Damaged) -> None:
    entries = damaged.link.xrange("headrace:recreated:0")
    assert next(fields[b"value"] for _, fields in entries) == b"new"
    assert b"old" not in [fields[b"value"] for _, fields in entries]
    with Wire(damaged.server.kafka) as wire:
        assert wire.produce("recreated", batch(b"newer")).error_code == 0


@pytest.mark.parametrize("name", [*LOGS, *NATIVES])
def test_a_partition_in_a_wrong_state_is_offline_and_reported(damaged: Damaged, name: str) -> None:
    if name == "log-state-i":
        # Any text distinguishes logs.
        return
    told = [line for line in damaged.told.splitlines() if f'"topic": "{name}"' in line and "offline" in line]
    assert told, damaged.told
    if "deleted" in name or "back" in name:
        # See below; tests come in any order.
        return
    with Wire(damaged.server.kafka) as wire:
        assert wire.produce(name, batch(b"w")).error_code != 0


@pytest.mark.parametrize("name", ENTRIES)
def test_a_topic_whose_entry_cannot_be_read_is_reported_and_can_be_deleted(damaged: Damaged, name: str) -> None:
    assert f'"name": "{name}"' in damaged.told
    with Wire(damaged.server.kafka) as wire:
        assert wire.produce(name, batch(b"w")).error_code != 0
        wire.delete(name)
        wire.create(name)
        assert wire.produce(name, batch(b"w")).base_offset == 0


@pytest.mark.parametrize("name", [*LOST_GROUPS, *PART_GROUPS])
def test_a_group_that_cannot_be_read_is_reported(damaged: Damaged, name: str) -> None:
    if name == "group-e":
        # A value that is not a number fences no client.
        return
    assert f'"kind": "groups", "name": "{name}"' in damaged.told


@pytest.mark.parametrize("kind", [*KINDS, "deleted"])
def test_a_document_that_cannot_be_read_is_reported(damaged: Damaged, kind: str) -> None:
    assert f'"kind": "{kind}", "name": "bad"' in damaged.told


def test_the_health_check_and_the_metrics_count_them(damaged: Damaged) -> None:
    with urllib.request.urlopen(f"{damaged.server.http}/healthz") as answer:
        health = json.load(answer)
    assert "partitions offline: " in health["detail"]
    assert "stored values that cannot be read: " in health["detail"]
    with urllib.request.urlopen(f"{damaged.server.http}/metrics") as answer:
        page = answer.read().decode()
    assert int(page.split("\nheadrace_unopened_partitions ")[1].split("\n")[0]) >= len(LOGS) - 1


def test_commands_name_the_partition_and_the_reason(damaged: Damaged) -> None:
    command = [sys.executable, "-m", "headrace"]
    described = subprocess.run(
        [*command, "topics", "describe", "log-rows", "--kafka", damaged.server.kafka],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "partition 0 is offline: field l of {headrace:log-rows:0}:state" in described.stdout, described
    environment = os.environ | {"HEADRACE_KAFKA": damaged.server.kafka}
    doctor = subprocess.run(
        [*command, "doctor", "--json"], capture_output=True, text=True, check=False, env=environment
    )
    found = {each["check"]: each for each in json.loads(doctor.stdout)}
    assert found["partitions"]["state"] == "failed", doctor
    assert "without a leader: log-" in found["partitions"]["found"]


@pytest.mark.parametrize("name", ["log-deleted", "log-deleted-state", "plain-deleted"])
def test_an_offline_topic_can_be_deleted_and_made_again(damaged: Damaged, name: str) -> None:
    with Wire(damaged.server.kafka) as wire:
        wire.delete(name)
        assert not [key for key in damaged.link.scan_iter() if f"headrace:{name}:".encode() in key]
        wire.create(name)
        assert wire.produce(name, batch(b"w")).base_offset == 0


def test_a_partition_comes_back_once_its_keys_are_right(damaged: Damaged) -> None:
    damaged.link.delete("{headrace:log-back:0}:state")
    with Wire(damaged.server.kafka) as wire:
        deadline = time.monotonic() + 60
        while (answer := wire.produce("log-back", batch(b"w"))).error_code:
            assert answer.error_code in {Code.KAFKA_STORAGE_ERROR, Code.NOT_LEADER_OR_FOLLOWER}
            assert time.monotonic() < deadline
        assert answer.base_offset == 1
