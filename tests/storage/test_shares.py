"""The stored state of share partitions: fenced by the leader's term, the state epoch and the number of the write."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import redis
from tests.conftest import OpenStorage
from tests.harness.logs import opened

from headrace.groups.sharing.state import NOT_BEGUN, RecordState, ShareState, StoredRun
from headrace.storage.layout.keys import Keyspace
from headrace.storage.logs.replicas import ConfirmDone, NoReplicas
from headrace.storage.redis.script_calls import Scripts
from headrace.storage.redis.shards import Shards
from headrace.storage.shares import RedisShares
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import Fenced, StorageUnavailable, TopicError, UnknownTopic
from headrace.topics.model import Topic

STREAM = "headrace:t:0"
KEY = "{headrace:t:0}:shares"
TOPIC = Topic(name="t", id=UUID(int=1), streams=(STREAM,), config={}, created_ms=5)
BEGUN = ShareState(3, NOT_BEGUN)
STATE = ShareState(3, 5, (StoredRun(2, RecordState.AVAILABLE, 1), StoredRun(1, RecordState.DONE)))


@pytest.fixture
async def storage(open_storage: OpenStorage) -> RedisStorage:
    """A storage that leads the log of `STREAM`."""
    made = await open_storage()
    await made.topics.create(TOPIC)
    await opened(made, STREAM)
    return made


async def test_a_state_comes_back_as_it_was_saved(storage: RedisStorage, raw: "redis.Redis") -> None:
    shares = storage.shares
    assert await shares.look(STREAM, "g") is None
    assert await shares.init(STREAM, "g", BEGUN)
    term, state = await shares.load(STREAM, "g")
    assert state == BEGUN == await shares.look(STREAM, "g")
    assert raw.hgetall(KEY) == {"default/g": "0:0 3 -1"}
    assert await shares.save(STREAM, "g", term, STATE)
    assert await shares.load(STREAM, "g") == (term, STATE)
    assert raw.hgetall(KEY) == {"default/g": f"{term}:1 3 5 2a1,1d"}
    assert await shares.load(STREAM, "other") == (term, None)


@pytest.mark.parametrize("group", ["with space", "{", "a}b{c}", "ü", "x" * 1_024, ":", "/"])
async def test_any_group_will_do_and_virtual_clusters_have_their_own(storage: RedisStorage, group: str) -> None:
    other = storage.in_cluster("b").shares
    await storage.shares.init(STREAM, group, BEGUN)
    await other.init(STREAM, group, ShareState(4, 9))
    assert (await storage.shares.load(STREAM, group))[1] == BEGUN
    assert (await other.load(STREAM, group))[1] == ShareState(4, 9)


async def test_an_epoch_begins_once_and_no_earlier_one_after_it(storage: RedisStorage) -> None:
    shares = storage.shares
    assert await shares.init(STREAM, "g", BEGUN)
    term, _ = await shares.load(STREAM, "g")
    assert await shares.save(STREAM, "g", term, STATE)
    assert not await shares.init(STREAM, "g", BEGUN)
    assert await shares.look(STREAM, "g") == STATE
    assert await shares.init(STREAM, "g", ShareState(4, 100))
    with pytest.raises(Fenced):
        await shares.init(STREAM, "g", BEGUN)
    assert not await shares.save(STREAM, "g", term, STATE)
    assert await shares.look(STREAM, "g") == ShareState(4, 100)
    assert await shares.save(STREAM, "g", term, ShareState(4, 101))


async def test_a_removed_state_is_not_saved_again(storage: RedisStorage, raw: "redis.Redis") -> None:
    shares = storage.shares
    await shares.init(STREAM, "g", BEGUN)
    term, _ = await shares.load(STREAM, "g")
    with pytest.raises(Fenced):
        await shares.drop(STREAM, "g", 2)
    await shares.drop(STREAM, "g", 3)
    await shares.drop(STREAM, "g", 3)
    assert not await shares.save(STREAM, "g", term, STATE)
    assert not raw.exists(KEY)


async def test_the_next_leader_shuts_the_earlier_one_out(storage: RedisStorage, open_storage: OpenStorage) -> None:
    await storage.shares.init(STREAM, "g", BEGUN)
    term, _ = await storage.shares.load(STREAM, "g")
    newer = await open_storage(epoch=2)
    with pytest.raises(UnknownTopic):
        await newer.shares.load(STREAM, "g")
    await opened(newer, STREAM)
    with pytest.raises(Fenced):
        await storage.shares.save(STREAM, "g", term, STATE)
    with pytest.raises(Fenced):
        await storage.shares.load(STREAM, "g")
    later, state = await newer.shares.load(STREAM, "g")
    assert later > term
    assert state == BEGUN
    assert await newer.shares.save(STREAM, "g", later, STATE)


async def test_a_topic_takes_its_share_partitions_along(storage: RedisStorage, raw: "redis.Redis") -> None:
    await storage.shares.init(STREAM, "g", BEGUN)
    term, _ = await storage.shares.load(STREAM, "g")
    await storage.topics.delete(TOPIC)
    assert not raw.exists(KEY)
    with pytest.raises(UnknownTopic):
        await storage.shares.load(STREAM, "g")
    with pytest.raises(UnknownTopic):
        await storage.shares.save(STREAM, "g", term, STATE)


class _Cut(Scripts):
    """Scripts over a connection that is given up before the write has left; it may come in later."""

    late: Callable[[], Awaitable[object]] | None = None

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards)

    async def run(self, name: str, keys: list[str], *arguments: str | bytes | int) -> Any:
        if name == "share_save" and self.late is None:
            self.late = partial(super().run, name, keys, *arguments)
            raise StorageUnavailable("the connection was lost")
        return await super().run(name, keys, *arguments)


async def test_a_write_of_a_lost_connection_does_not_come_in_behind_the_next(
    storage: RedisStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = storage.shares
    await shares.init(STREAM, "g", BEGUN)
    term, _ = await shares.load(STREAM, "g")
    cut = _Cut(storage.scripts.shards)
    monkeypatch.setattr(shares, "_scripts", cut)
    with pytest.raises(StorageUnavailable):
        await shares.save(STREAM, "g", term, STATE)
    assert await shares.save(STREAM, "g", term, ShareState(3, 8))
    assert cut.late is not None
    with pytest.raises(Fenced):
        await cut.late()
    assert (await shares.load(STREAM, "g"))[1] == ShareState(3, 8)


async def test_what_headrace_did_not_write_is_an_error(storage: RedisStorage, raw: "redis.Redis") -> None:
    raw.hset(KEY, "default/g", "0:0 nonsense")
    with pytest.raises(TopicError, match="unreadable"):
        await storage.shares.load(STREAM, "g")
    raw.delete(KEY)
    raw.set(KEY, "text")
    for call in (storage.shares.load(STREAM, "g"), storage.shares.init(STREAM, "g", BEGUN)):
        with pytest.raises(TopicError, match="not the hash"):
            await call
    await storage.shares.drop(STREAM, "g", 3)


class Copies(NoReplicas):
    """Replicas that have a write, or not."""

    can_replicate = True

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.error: Exception | None = None
        self.connections = [1]

    def primary(self, _stream: str) -> object:
        return self.connections.pop() if len(self.connections) > 1 else self.connections[0]

    def confirm(self, stream: str, copies: int, wait_ms: int | None, done: ConfirmDone) -> None:
        self.asked.append((stream, copies))
        done(self.error)


async def test_a_state_counts_when_its_replicas_have_it(storage: RedisStorage) -> None:
    copies = Copies()
    shares = RedisShares(storage.scripts, Keyspace(), storage.logs, copies)
    assert await shares.init(STREAM, "g", BEGUN, 2)
    term, _ = await shares.load(STREAM, "g")
    assert await shares.save(STREAM, "g", term, STATE)
    assert copies.asked == [(KEY, 2)]
    copies.error = StorageUnavailable("too few")
    with pytest.raises(StorageUnavailable, match="too few"):
        await shares.save(STREAM, "g", term, STATE, 2)
    with pytest.raises(StorageUnavailable, match="too few"):
        await shares.init(STREAM, "g", BEGUN, 2)
    copies.error = None
    assert await shares.save(STREAM, "g", term, STATE, 2)
    # The first write may be at a primary that another one has replaced.
    copies.connections = [2, 1]
    with pytest.raises(StorageUnavailable, match="another primary"):
        await shares.save(STREAM, "g", term, STATE, 2)
