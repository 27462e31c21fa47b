"""Headrace's data in Redis, compared byte by byte with golden files.

A difference is a change of the layout: older servers, and Spark jobs of another version, read the stored data. If they
still can, update the files (`python tests/storage/layout/test_golden.py --update`); if not, raise LAYOUT_VERSION.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import msgspec
import redis
import redis.asyncio
from tests.harness.redis import RedisServer

from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.groups.instances.model import StartKind
from headrace.groups.model import (
    GroupHeader,
    OffsetAndMetadata,
    PendingKey,
    PendingOffset,
    SaveBalanced,
    SaveField,
    SaveHeader,
    SaveMember,
    SaveOffsets,
    SavePending,
    StoredBalanced,
    StoredConsumer,
    StoredGrants,
    StoredInstance,
    StoredMember,
    StoredOwner,
    StoredPartitions,
    StoredStart,
    TopicPartition,
)
from headrace.groups.sharing.model import StoredSharer, StoredShareTopic
from headrace.groups.sharing.state import ShareState
from headrace.records.build import build
from headrace.storage.layout import LAYOUT_VERSION
from headrace.storage.layout.keys import Keyspace
from headrace.storage.logs.leader_log import LeaderLog
from headrace.storage.storage import RedisStorage
from headrace.testing.clock import ManualClock
from headrace.topics.model import Append, Appended, Topic

GOLDEN = Path(__file__).parent / "golden" / f"layout-{LAYOUT_VERSION}.json"
NOW_MS = 1_700_000_000_000
TERM = 2_000_000_000
STREAMS = ("headrace:flights:0", "headrace:flights:1")
TOPIC = Topic(
    name="flights",
    id=UUID(int=0x1234 << 64 | 0x5678),
    streams=STREAMS,
    config={"retention.ms": "-1"},
    created_ms=NOW_MS,
)
HEADER = GroupHeader(generation=4, protocol_type="consumer", protocol="range", leader="m-1", empty_since_ms=None)
MEMBER = StoredMember(
    member_id="m-1",
    instance_id="static",
    client_id="c",
    client_host="127.0.0.1",
    session_timeout_ms=45_000,
    rebalance_timeout_ms=300_000,
    protocols=(("range", b"\x00\x01\xff"),),
    assignment=b"\x00\x02",
)
POSITIONS = {
    TopicPartition("flights", 0): OffsetAndMetadata(offset=5, leader_epoch=0, metadata="note", committed_ms=NOW_MS),
    TopicPartition("flights", 1): OffsetAndMetadata(offset=0),
}
PENDING = {
    PendingKey(7, TopicPartition("flights", 0)): PendingOffset(
        producer_epoch=1, transactional_id="tx", number=3, position=OffsetAndMetadata(offset=9, committed_ms=NOW_MS)
    )
}
SECTION = StoredBalanced(
    topic="flights",
    created_ms=NOW_MS,
    epoch=NOW_MS + 1,
    generation=3,
    incarnations=5,
    retention_ms=86_400_000,
    used_ms=NOW_MS + 1,
    instances=(
        StoredInstance(name="a", incarnation=4, timeout_ms=30_000, commit_on_get=True, joined=1),
        StoredInstance(name="b", incarnation=5, timeout_ms=5_000, commit_on_get=False, joined=3, lost={1: 3}),
    ),
    owners=(StoredOwner("a", 1), StoredOwner("b", 3), None),
    starts={
        0: StoredStart(7, StartKind.TRIM_HORIZON),
        2: StoredStart(9, StartKind.AT_TIME, NOW_MS + 60_000),
    },
)
CONSUMER = StoredConsumer(
    member_id="m-2",
    instance_id="static",
    rack_id="r",
    client_id="c",
    client_host="127.0.0.1",
    rebalance_timeout_ms=300_000,
    topics=("flights",),
    pattern="fl.*",
    assignor="uniform",
    epoch=7,
    previous_epoch=6,
    state="UNREVOKED",
    held=(StoredGrants("flights", TOPIC.id, {5: (0,), 6: (1,)}),),
    revoking=(StoredPartitions("flights", TOPIC.id, (1,)),),
    target=(StoredPartitions("flights", TOPIC.id, (0,)),),
    has_left=True,
    session_timeout_ms=45_000,
    protocols=(("range", b"\x00\x01\xff"),),
)
SHARER = StoredSharer(
    member_id="m-3",
    rack_id="r",
    client_id="c",
    client_host="127.0.0.1",
    topics=("flights",),
    epoch=7,
    previous_epoch=6,
    assigned={"flights": (0, 1)},
)
SHARED = StoredShareTopic(topic="flights", topic_id=TOPIC.id, partitions=2, epoch=NOW_MS, altered={1: NOW_MS + 1})
SHARES = ShareState.decode("2 3 1a1,1d,4x5")
DOCUMENTS = {("tags", "1f"): b'{"team":"blue"}', ("tags", "2e"): b"\x00\xff", ("pools", "1f"): b"{}"}


def batch(count: int, time: int, producer: int = -1, epoch: int = -1, sequence: int = -1) -> Append:
    records = [(b"key", b"value %d" % number, time, ()) for number in range(count)]
    made = build(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return Append(made, count, time, producer, epoch, sequence)


APPENDS = (
    batch(2, NOW_MS),
    batch(3, NOW_MS + 5, producer=7, epoch=1, sequence=0),
    batch(1, NOW_MS + 3, producer=7, epoch=1, sequence=3),
    batch(2, -1, producer=8, epoch=0, sequence=2**31 - 1),
    batch(1, NOW_MS + 9),
)


async def write(url: str) -> None:
    """Everything there is, once."""
    admin = redis.asyncio.from_url(url)
    keys = Keyspace()
    await admin.set(keys.cluster_id, "AAAAAAAAAAAAAAAAAAAAAA")
    await admin.set(keys.epoch, 3)
    storage = await RedisStorage.open(url, admin, 3)
    await storage.topics.create(TOPIC)
    first, second = await partitions(storage, TERM)
    assert await append(first, *APPENDS[:3]) == [Appended(0), Appended(2), Appended(5)]
    for earlier in (first, second):
        earlier.close()
    first, second = await partitions(storage, TERM + 1)
    assert await append(first, *APPENDS[3:]) == [Appended(6), Appended(8)]
    await first.delete_before(3)
    assert first.log_start == 3
    assert await storage.topics.allocate_producer_ids(1_000) == 0
    await storage.groups.save(
        "board",
        [
            *(SaveHeader(HEADER), SaveMember(MEMBER), SaveOffsets(POSITIONS), SavePending(PENDING)),
            *(SaveBalanced(SECTION), SaveField(CONSUMER), SaveField(SHARER), SaveField(SHARED)),
        ],
    )
    await storage.shares.init(STREAMS[0], "sharers", ShareState(2, -1))
    await storage.shares.init(STREAMS[1], "sharers", ShareState(2, -1))
    assert await storage.shares.save(
        STREAMS[0], "sharers", (await storage.shares.load(STREAMS[0], "sharers"))[0], SHARES
    )
    await storage.documents.save(DOCUMENTS)
    await first.mirror_offset("board", 5)
    await second.mirror_offset("board", 0)
    await storage.close()


async def partitions(storage: RedisStorage, term: int) -> list[LeaderPartition]:
    """Both partitions, opened under a term that is later than the present time gives, and so is always the same."""
    storage.logs._now_ms = lambda: NOW_MS
    storage.logs._appender._now_ms = lambda: NOW_MS
    opened = []
    for index, stream in enumerate(STREAMS):
        storage.logs._logs.setdefault(stream, LeaderLog(stream)).term = term - 1
        made = LeaderPartition(
            "flights", index, stream, storage.logs, CacheBudget(1 << 20), ManualClock(NOW_MS), SnapshotSchedule()
        )
        with patch("headrace.storage.logs.redis_logs.uuid4", return_value=UUID(int=0x1F << 120)):
            await made.open(create=True)
        opened.append(made)
    return opened


async def append(partition: LeaderPartition, *appends: Append) -> list[Appended | Exception]:
    """Append copies, since they are stamped; what each was answered."""
    answers: list[Appended | Exception] = []
    for each in appends:
        partition.append(msgspec.structs.replace(each, batch=bytearray(each.batch)), answers.append)
    await partition.settle()
    return answers


def dump(url: str) -> dict[str, Any]:
    """Every key with its value; bytes that are no ASCII text as `hex:...`."""
    with redis.Redis.from_url(url) as link:
        return {key.decode(): _value(link, key) for key in sorted(link.keys())}


def _value(link: Any, key: bytes) -> Any:
    kind = link.type(key)
    if kind == b"string":
        return _text(link.get(key))
    if kind == b"set":
        return sorted(_text(member) for member in link.smembers(key))
    if kind == b"hash":
        return {_text(field): _text(value) for field, value in sorted(link.hgetall(key).items())}
    assert kind == b"stream", key
    return {
        "last id": _text(link.xinfo_stream(key)["last-generated-id"]),
        "entries": [
            {"id": _text(name), **{_text(field): _text(value) for field, value in fields.items()}}
            for name, fields in link.xrange(key)
        ],
        "groups": {_text(group["name"]): _text(group["last-delivered-id"]) for group in link.xinfo_groups(key)},
    }


def _text(value: bytes) -> str:
    return value.decode() if value.isascii() and value.decode().isprintable() else f"hex:{value.hex()}"


def stored(server: RedisServer) -> str:
    """What a server leaves on an empty Redis, as the golden file has it."""
    with redis.Redis.from_url(server.url) as link:
        link.flushall()
    asyncio.run(write(server.url))
    return json.dumps(dump(server.url), indent=1) + "\n"


def test_the_layout_is_what_the_golden_file_has(any_redis: RedisServer) -> None:
    assert stored(any_redis) == GOLDEN.read_text()


def test_values_of_an_earlier_version_are_read(any_redis: RedisServer) -> None:
    """The golden file is put back by hand, then opened."""
    golden: dict[str, Any] = json.loads(GOLDEN.read_text())
    with redis.Redis.from_url(any_redis.url) as link:
        link.flushall()
        for key, value in golden.items():
            _put(link, key, value)
    asyncio.run(_read_back(any_redis.url))
    assert json.dumps(_without_epochs(dump(any_redis.url))) == json.dumps(_without_epochs(golden))


def _put(link: Any, key: str, value: Any) -> None:
    if isinstance(value, str):
        link.set(key, value)
    elif isinstance(value, list):
        link.sadd(key, *value)
    elif "entries" in value:
        for entry in value["entries"]:
            fields = {name: _bytes(text) for name, text in entry.items() if name != "id"}
            link.xadd(key, fields, id=entry["id"])
        for group, last in value["groups"].items():
            link.xgroup_create(key, group, last, mkstream=True)
    else:
        link.hset(key, mapping={name: _bytes(text) for name, text in value.items()})


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode()


def _without_epochs(found: dict[str, Any]) -> dict[str, Any]:
    """But for what every opening changes: epochs, terms and their rows."""
    changed = {"e", "v", "l", "last id"}
    return {
        key: {name: text for name, text in value.items() if name not in changed} if isinstance(value, dict) else value
        for key, value in found.items()
    }


async def _read_back(url: str) -> None:
    storage = await RedisStorage.open(url, redis.asyncio.from_url(url), 4)
    assert storage.cluster_id == "AAAAAAAAAAAAAAAAAAAAAA"
    assert await storage.topics.load() == [TOPIC]
    first, second = await partitions(storage, TERM + 2)
    assert (first.log_start, first.log_end, first.leader_epoch) == (3, 9, TERM + 2)
    assert [first.end_of_epoch(epoch) for epoch in (TERM, TERM + 1)] == [(TERM, 6), (TERM + 1, 9)]
    found = await storage.logs.read(STREAMS[0], 3, 100)
    assert [bytes(each.batch[16:]) for each in found] == [bytes(each.batch[16:]) for each in APPENDS[1:]]
    assert [each.base_offset for each in found] == [2, 5, 6, 8]
    assert second.log_end == 0
    (group,) = await storage.groups.load()
    assert (group.header, group.members, group.positions) == (HEADER, (MEMBER,), POSITIONS)
    assert {each.field: each for each in group.fields} == {each.field: each for each in (CONSUMER, SHARER, SHARED)}
    assert group.balanced == (SECTION,)
    assert group.pending == PENDING
    assert await storage.shares.load(STREAMS[0], "sharers") == (TERM + 2, SHARES)
    for kind in ("tags", "pools"):
        assert await storage.documents.load(kind) == {name: v for (k, name), v in DOCUMENTS.items() if k == kind}
    again = [Appended(2, duplicate=True), Appended(5, duplicate=True), Appended(6, duplicate=True)]
    assert await append(first, *APPENDS[1:4]) == again
    await storage.close()


if __name__ == "__main__" and sys.argv[1:] == ["--update"]:
    with RedisServer() as server:
        GOLDEN.write_text(stored(server))
