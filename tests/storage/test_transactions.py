import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import redis
from msgspec.structs import replace
from tests.conftest import OpenStorage
from tests.harness.transactions import P0, P1, stored_at

from headrace.metrics.unreadable_values import Unreadable
from headrace.storage.layout.keys import Keyspace, barrier_of
from headrace.storage.redis.script_calls import Scripts
from headrace.storage.redis.shards import Shards
from headrace.storage.storage import RedisStorage
from headrace.storage.transactions import RedisTransactions
from headrace.topics.errors import Fenced, NotEnoughReplicasAfterAppend, StorageUnavailable, TopicError
from headrace.transactions.model import NEW, DropTransaction, GroupId, SaveTransaction, TransactionState

S = TransactionState
KEY = "headrace:transaction:{default/id}"
NAMES = "headrace:{meta}:transactions"
HOUR_MS = 3_600_000


@pytest.fixture
async def storage(open_storage: OpenStorage) -> RedisStorage:
    return await open_storage()


def saved(state: TransactionState = S.ONGOING, epoch: int = 5, copies: int = 1) -> SaveTransaction:
    return SaveTransaction(stored_at(state, epoch, copies=copies))


async def test_a_state_comes_back_as_it_was_stored(storage: RedisStorage, open_storage: OpenStorage) -> None:
    states = [S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.COMPLETE_COMMIT]
    for epoch, state in enumerate(states, 2):
        stored = stored_at(state, epoch)
        if state.open:
            stored = stored.with_participants((P0, P1, GroupId("grün")))
        await storage.transactions.save("id", SaveTransaction(stored))
        storage = await open_storage(epoch)
        assert await storage.transactions.names() == ["id"]
        assert await storage.transactions.load_one("id") == stored


@pytest.mark.parametrize("name", ["id", "with space", "{", "}", "a}b{c}", "ü", "x" * 1_024, ":"])
async def test_any_id_will_do(storage: RedisStorage, name: str) -> None:
    await storage.transactions.save(name, saved())
    await storage.transactions.save("other", saved(epoch=6))
    assert await storage.transactions.names() == sorted([name, "other"])
    assert (await storage.transactions.load_one(name)).producer_epoch == 5


async def test_virtual_clusters_have_their_own_ids(storage: RedisStorage) -> None:
    other = storage.in_cluster("b").transactions
    await storage.transactions.save("id", saved())
    await other.save("id", saved(epoch=6))
    await other.save("more", saved())
    assert await storage.transactions.names() == ["id"]
    assert await other.names() == ["id", "more"]
    assert (await other.load_one("id")).producer_epoch == 6


async def test_a_removed_id_leaves_nothing_but_its_fence(storage: RedisStorage, raw: "redis.Redis") -> None:
    before = set(raw.keys())
    await storage.transactions.save("id", saved(S.EMPTY))
    assert raw.smembers(NAMES) == {"id"}
    await storage.transactions.save("id", DropTransaction())
    assert set(raw.keys()) == {*before, KEY}
    assert raw.hgetall(KEY) == {"e": "1"}
    assert raw.pttl(KEY) > HOUR_MS - 60_000
    assert await storage.transactions.load_one("id", 1) is NEW
    assert raw.pttl(KEY) > HOUR_MS - 60_000
    await storage.transactions.save("id", saved())
    assert raw.pttl(KEY) == -1


async def test_the_fence_of_a_missing_id_lasts_a_minute(storage: RedisStorage, raw: "redis.Redis") -> None:
    assert await storage.transactions.load_one("id") is NEW
    assert 50_000 < raw.pttl(KEY) <= 60_000
    assert await storage.transactions.names() == []


async def test_a_load_by_a_later_coordinator_shuts_out_the_earlier_one(
    storage: RedisStorage, open_storage: OpenStorage
) -> None:
    await storage.transactions.save("id", saved())
    newer = await open_storage(epoch=2)
    assert (await newer.transactions.load_one("id", 2)).state is S.ONGOING
    for change in (saved(S.PREPARE_COMMIT), DropTransaction()):
        with pytest.raises(Fenced):
            await storage.transactions.save("id", change, 1)
    with pytest.raises(Fenced):
        await storage.transactions.load_one("id", 1)
    assert (await newer.transactions.load_one("id", 2)).state is S.ONGOING


class _Cut(Scripts):
    """Scripts over a connection that is given up before the write has left; it may come in later."""

    late: Callable[[], Awaitable[object]] | None = None

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards)

    async def run(self, name: str, keys: list[str], *arguments: str | bytes | int) -> Any:
        if name == "save_transaction" and self.late is None:
            self.late = partial(super().run, name, keys, *arguments)
            raise StorageUnavailable("the connection was lost")
        return await super().run(name, keys, *arguments)


@pytest.mark.parametrize("then", [DropTransaction(), saved(S.PREPARE_ABORT)])
@pytest.mark.parametrize("number", [1, 28_166_000_000])
async def test_a_write_of_a_lost_connection_does_not_come_in_behind_the_next(
    storage: RedisStorage, then: SaveTransaction | DropTransaction, number: int
) -> None:
    """A late commit would contradict the abort that participants have seen."""
    storage.fence.number = number
    scripts = _Cut(storage.scripts.shards)
    transactions = RedisTransactions(scripts, Keyspace(), storage.fence, storage.copies)
    with pytest.raises(StorageUnavailable):
        await transactions.save("id", saved(S.PREPARE_COMMIT))
    await transactions.save("id", then)
    kept = await transactions.load_one("id", number)
    assert scripts.late is not None
    with pytest.raises(Fenced):
        await scripts.late()
    assert await transactions.load_one("id", number) == kept


async def test_a_write_that_never_left_is_not_given_up(storage: RedisStorage) -> None:
    await storage.transactions.save("id", saved())
    await storage.close()
    with pytest.raises(StorageUnavailable):
        await storage.transactions.save("id", saved())
    assert storage.fence.given_up == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw.hset(KEY, "state", '{"state":"Dead"}'),
        lambda raw: raw.hset(KEY, "state", b"\xff"),
        lambda raw: (raw.delete(KEY), raw.set(KEY, "mine")),
    ],
)
async def test_an_unreadable_id_is_named_and_not_overwritten(
    storage: RedisStorage, raw: "redis.Redis", spoil: Callable[["redis.Redis"], object]
) -> None:
    await storage.transactions.save("id", saved())
    spoil(raw)
    noted = Unreadable()
    transactions = RedisTransactions(storage.scripts, Keyspace(), storage.fence, storage.copies, noted)
    with pytest.raises(TopicError):
        await transactions.load_one("id")
    assert noted.reason("transactions", "id") is not None
    raw.delete(KEY)
    assert await transactions.load_one("id") is NEW
    assert noted.reason("transactions", "id") is None


class _Replicas:
    """Replicas that confirm when the test does."""

    can_replicate = True

    def __init__(self) -> None:
        self.reign: object = 1
        self.asked: list[tuple[str, int, Callable[[Exception | None], None]]] = []

    def primary(self, _: str) -> object:
        return self.reign

    def confirm(self, stream: str, copies: int, wait_ms: int | None, done: Callable[[Exception | None], None]) -> None:
        assert wait_ms is not None
        self.asked.append((stream, copies, done))


@pytest.fixture
def replicas() -> _Replicas:
    return _Replicas()


@pytest.fixture
def replicated(storage: RedisStorage, replicas: _Replicas) -> RedisTransactions:
    return RedisTransactions(storage.scripts, Keyspace(), storage.fence, replicas)  # type: ignore[arg-type]


async def asked(replicas: _Replicas, number: int = 1) -> None:
    async with asyncio.timeout(5):
        while len(replicas.asked) < number:
            await asyncio.sleep(0.001)


async def test_a_decision_waits_for_its_replicas(replicated: RedisTransactions, replicas: _Replicas) -> None:
    await replicated.save("id", saved(copies=2))
    assert replicas.asked == [], "only decisions wait"
    saving = asyncio.ensure_future(replicated.save("id", saved(S.PREPARE_COMMIT, copies=2)))
    await asked(replicas)
    assert replicas.asked[0][:2] == (KEY, 2)
    assert not saving.done()
    replicas.asked[0][2](None)
    await saving


async def test_a_decision_that_a_takeover_finds_waits_too(
    replicated: RedisTransactions, replicas: _Replicas, storage: RedisStorage
) -> None:
    await storage.transactions.save("id", saved(S.PREPARE_ABORT, copies=2))
    loading = asyncio.ensure_future(replicated.load_one("id"))
    await asked(replicas)
    assert not loading.done()
    replicas.asked[0][2](None)
    assert (await loading).state is S.PREPARE_ABORT


async def test_too_few_replicas_fail_the_decision(replicated: RedisTransactions, replicas: _Replicas) -> None:
    saving = asyncio.ensure_future(replicated.save("id", saved(S.PREPARE_COMMIT, copies=3)))
    await asked(replicas)
    replicas.asked[0][2](NotEnoughReplicasAfterAppend("1 of 3"))
    with pytest.raises(StorageUnavailable):
        await saving


async def test_another_primary_does_not_confirm(replicated: RedisTransactions, replicas: _Replicas) -> None:
    replicas.primary = lambda _: object()  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        await replicated.save("id", saved(S.PREPARE_COMMIT, copies=2))


async def test_one_server_has_no_replicas_to_wait_for(storage: RedisStorage) -> None:
    await storage.transactions.save("id", saved(S.PREPARE_COMMIT, copies=2))
    assert (await storage.transactions.load_one("id")).copies == 2


def test_the_barrier_of_a_hash_is_in_its_slot() -> None:
    assert barrier_of(Keyspace().transaction("id")) == KEY + ":barrier"
    assert barrier_of("headrace:t:0") == "{headrace:t:0}:barrier"


async def test_a_large_transaction_is_one_document(storage: RedisStorage) -> None:
    many = stored_at(S.ONGOING).with_participants(replace(P0, index=index) for index in range(5_000))
    await storage.transactions.save("id", SaveTransaction(many))
    assert await storage.transactions.load_one("id") == many
