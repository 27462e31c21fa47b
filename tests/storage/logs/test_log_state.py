"""The transactions of a log in a real Redis: saved, recovered, lost and rebuilt."""

import random
from typing import Any

import pytest
from tests.harness.owning import STREAM, Owner
from tests.harness.waiting import until
from tests.storage.conftest import Start

from headrace.broker.partition.participant import end_transaction
from headrace.broker.partition.source import COMMITTED, UNCOMMITTED
from headrace.records.build import build
from headrace.records.markers import Marker
from headrace.storage.layout.keys import aborted_of, state_of, transactions_of
from headrace.topics.model import Append, Appended
from headrace.topics.transactions import AbortedTransaction, OpenTransaction, Transactions, Unstable

VERSION = "headrace:{meta}:version"


def admitted(topic: str, index: int, append: Append, done: Any) -> None:
    # Above the number of the transaction before, which is that sequence.
    done(append.base_sequence + 1)


def sent(sequence: int, producer: int, *, transaction: str | None = "id", epoch: int = 0) -> Append:
    made = build(
        [(None, b"value", 5, ())],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transaction is not None,
    )
    return Append(made, 1, 5, producer, epoch, sequence, transaction)


class Producers:
    """Producers whose transactions a test begins and ends at random."""

    def __init__(self, owner: Owner) -> None:
        owner.partition.admission.admit = admitted
        self.owner = owner
        self.sequences = dict.fromkeys(range(1, 6), 0)
        self.ended: list[Exception | None] = []

    async def send(self, producer: int) -> None:
        found = await self.owner.append(sent(self.sequences[producer], producer))
        assert isinstance(found, Appended)
        self.sequences[producer] += 1

    async def end(self, producer: int, *, commit: bool) -> None:
        count = len(self.ended)
        marker = Marker(producer, 0, commit, self.sequences[producer])
        end_transaction(self.owner.partition, marker, self.ended.append)
        await until(lambda: len(self.ended) > count)
        assert self.ended[-1] is None

    async def some(self, chance: random.Random, count: int) -> None:
        for _ in range(count):
            producer = chance.choice(list(self.sequences))
            if chance.random() < 0.4:
                await self.end(producer, commit=chance.random() < 0.5)
            else:
                await self.send(producer)


def state_in(transactions: Transactions | None) -> tuple[list[Unstable], list[AbortedTransaction]]:
    """What does not depend on the time of a recovery, nor on what only the coordinator has returned."""
    assert transactions is not None
    unstable: list[Unstable] = [
        each._replace(since_ms=0, number=-1, transactional_id="") if isinstance(each, OpenTransaction) else each
        for each in transactions.unstable()
    ]
    return unstable, transactions.aborted.last(len(transactions.aborted))


@pytest.mark.parametrize("seed", range(4))
async def test_a_snapshot_and_the_tail_are_the_whole_log(start: Start, seed: int) -> None:
    chance = random.Random(seed)
    owner = await start()
    producers = Producers(owner)
    for _ in range(4):
        await producers.some(chance, 8)
        if chance.random() < 0.7:
            await owner.partition.save_producers()
        await producers.some(chance, chance.randrange(5))
        expected = state_in(owner.partition.transactions)
        states = {each.producer_id: each for each in owner.partition.producer_states()}
        await owner.partition.open()
        whole = await owner.storage.logs.rebuild_transactions(STREAM)
        whole.finish(owner.partition.log_end)
        assert state_in(owner.partition.transactions) == expected == state_in(whole)
        for each in owner.partition.producer_states():
            known = states[each.producer_id]
            assert each._replace(last_use_ms=0) == known._replace(last_use_ms=0)


async def test_the_next_leader_and_other_readers_know_the_last_stable_offset(start: Start) -> None:
    owner = await start()
    producers = Producers(owner)
    await producers.send(1)
    await producers.send(2)
    await owner.partition.save_producers()
    await producers.end(1, commit=False)
    look = await owner.storage.logs.look(STREAM)
    found = await look.transactions()
    assert found is not None
    found.finish(look.next_offset)
    assert found.stable_end(look.next_offset) == 1
    assert await look.aborted(0, 10, 10) == [], "only the snapshot has them"
    second = await start(view=2)
    assert second.partition.visible_end(COMMITTED) == 1
    await second.partition.save_producers()
    assert await look.aborted(0, 10, 10) == await second.storage.logs.aborted(STREAM, 0, 10, 10)
    assert [each.first_offset for each in await look.aborted(0, 10, 10)] == [0]
    assert await look.aborted(3, 10, 10) == await look.aborted(0, 10, 0) == []


async def test_layout_3_is_written_before_the_first_transactional_batch(start: Start, link: Any) -> None:
    owner = await start()
    assert await owner.append(sent(0, 9, transaction=None)) == Appended(0)
    await owner.partition.save_producers()
    assert (link.get(VERSION), link.exists(transactions_of(STREAM)), link.hget(state_of(STREAM), "x")) == (
        b"2",
        0,
        None,
    )
    producers = Producers(owner)
    await producers.send(1)
    assert link.get(VERSION) == b"3"
    await owner.partition.save_producers()
    assert link.hgetall(transactions_of(STREAM)).keys() == {b"aborted", b"o:1"}
    again = await start(view=2)
    assert again.partition.visible_end(COMMITTED) == 1


@pytest.mark.parametrize("lost", [transactions_of, aborted_of])
async def test_a_lost_index_is_rebuilt_from_the_log(start: Start, link: Any, lost: Any) -> None:
    owner = await start()
    producers = Producers(owner)
    await producers.some(random.Random(1), 30)
    await producers.send(1)
    await producers.end(1, commit=False)
    await owner.partition.save_producers()
    expected = state_in(owner.partition.transactions)
    link.delete(lost(STREAM))
    await owner.partition.open()
    assert owner.partition.transactions is None
    assert (owner.partition.visible_end(COMMITTED), owner.partition.visible_end(UNCOMMITTED)) == (
        0,
        owner.partition.log_end,
    )
    await until(lambda: owner.partition.transactions is not None)
    assert state_in(owner.partition.transactions) == expected
    await owner.partition.save_producers()
    await owner.partition.open()
    assert state_in(owner.partition.transactions) == expected


async def test_a_lost_state_is_read_from_the_log(start: Start, link: Any) -> None:
    owner = await start()
    producers = Producers(owner)
    await producers.some(random.Random(2), 30)
    await owner.partition.save_producers()
    expected = state_in(owner.partition.transactions)
    link.delete(state_of(STREAM), transactions_of(STREAM), aborted_of(STREAM))
    await owner.partition.open()
    assert state_in(owner.partition.transactions) == expected


async def test_trimmed_transactions_leave_the_index(start: Start, link: Any) -> None:
    owner = await start()
    producers = Producers(owner)
    for _ in range(3):
        await producers.send(1)
        await producers.end(1, commit=False)
    await owner.partition.save_producers()
    assert link.zrange(aborted_of(STREAM), 0, -1, withscores=True) == [(b"1 0 2", 1), (b"1 2 4", 3), (b"1 4 6", 5)]
    await owner.partition.delete_before(4)
    await producers.send(1)
    await owner.partition.save_producers()
    assert link.zrange(aborted_of(STREAM), 0, -1) == [b"1 4 6"]
    await owner.partition.open()
    assert owner.partition.transactions is not None


async def test_a_dropped_log_leaves_no_keys(start: Start, link: Any) -> None:
    owner = await start()
    producers = Producers(owner)
    await producers.send(1)
    await producers.end(1, commit=False)
    await owner.partition.save_producers()
    owner.partition.close()
    await owner.storage.logs.drop(STREAM)
    assert link.keys(f"*{STREAM}*") == []
