"""Transactions of one server, over a real storage: what logs and groups ask, and the ends that they get."""

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest
import structlog
from tests.broker.world import World
from tests.harness.coordinated import turns
from tests.harness.memory import MemoryStorage
from tests.harness.transactions import stored_at
from tests.harness.waiting import until

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.coordinator.cluster_transactions import ClusterTransactions, TransactionRefused, append_error
from headrace.broker.coordinator.participants import ClusterParticipants
from headrace.broker.coordinator.remote_transactions import RemoteAnswer, RemoteQuestion, TransactionPeers
from headrace.broker.coordinator.transaction_runner import Participants
from headrace.broker.partition.source import COMMITTED, UNCOMMITTED
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.broker.topics.live import LiveTopic
from headrace.groups.events import TxnOffsetCommit
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.groups.pending_offsets import OpenTransaction
from headrace.membership.view import FEATURES, Member, View
from headrace.records.build import build
from headrace.testing.clock import ManualClock
from headrace.topics.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    NotEnoughReplicas,
    StorageUnavailable,
    TransactionUnverified,
)
from headrace.topics.model import Appended
from headrace.transactions.effects import EndParticipants, EndResult, InitResult
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Add, End, Init
from headrace.transactions.model import (
    GroupId,
    Participant,
    PartitionId,
    SaveTransaction,
    StoredTransaction,
    TransactionSettings,
    TransactionState,
)

E = TransactionError


async def init(world: World) -> tuple[int, int]:
    event = Init(token=object(), timeout_ms=60_000)
    result = await world.broker.transactions.request("id", event)
    assert isinstance(result, InitResult)
    assert result.error is None
    return result.producer_id, result.epoch


async def send(
    world: World, producer: tuple[int, int], *, adds: bool = True, sequence: int = 0
) -> Appended | Exception:
    done: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()
    made = build(
        [(None, b"value", world.clock.now_ms(), ())],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=0,
        transactional=True,
    )
    world.flights.append(0, made, world.clock.now_ms(), done.set_result, transactional_id="id", adds_partition=adds)
    return await done


async def finish(world: World, producer: tuple[int, int], *, commit: bool) -> TransactionError | None:
    event = End(token=object(), producer_id=producer[0], epoch=producer[1], commit=commit, version=2)
    result = await world.broker.transactions.request("id", event)
    assert isinstance(result, EndResult)
    return result.error


def ends(world: World) -> tuple[int, int]:
    """High watermark and last stable offset."""
    log = world.flights.partitions[0].log
    assert log is not None
    return log.visible_end(UNCOMMITTED), log.visible_end(COMMITTED)


def call(*participants: Participant, producer_id: int = 7, epoch: int = 0) -> EndParticipants:
    return EndParticipants(
        producer_id=producer_id, epoch=epoch, commit=True, number=1, copies=1, version=1, participants=participants
    )


@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_continues_after_a_restart(world: World, commit: bool) -> None:
    await world.topic()
    producer = await init(world)
    assert isinstance(await send(world, producer), Appended)
    assert ends(world) == (1, 0)
    await world.restart()
    assert ends(world) == (1, 0)
    assert await finish(world, producer, commit=commit) is None
    assert ends(world) == (2, 2)


async def test_a_decision_is_carried_out_after_a_restart(world: World) -> None:
    live = await world.topic()
    producer = await init(world)
    assert isinstance(await send(world, producer), Appended)
    decided = StoredTransaction(
        state=TransactionState.PREPARE_COMMIT,
        producer_id=producer[0],
        producer_epoch=producer[1] + 1,
        last_epoch=producer[1],
        number=1,
        version=2,
        timeout_ms=60_000,
        partitions={live.topic.id: (0,), UUID(int=5): (3,)},
        groups=("g",),
    )
    await world.storage.transactions.save("id", SaveTransaction(decided))
    await world.restart()
    await until(lambda: ends(world) == (2, 2))


async def test_the_first_batch_needs_its_coordinator(world: World) -> None:
    await world.topic()
    producer = await init(world)
    assert isinstance(await send(world, producer, adds=False), InvalidTransactionState)
    assert ends(world) == (0, 0)
    assert isinstance(await send(world, producer), Appended), "the same batch again"
    assert isinstance(await send(world, (producer[0], producer[1] + 1)), InvalidProducerEpoch)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (E.CONCURRENT_TRANSACTIONS, NotEnoughReplicas),
        (E.COORDINATOR_LOAD_IN_PROGRESS, NotEnoughReplicas),
        (E.NOT_COORDINATOR, NotEnoughReplicas),
        (E.PRODUCER_FENCED, InvalidProducerEpoch),
        (E.TRANSACTION_ABORTABLE, TransactionUnverified),
        (E.POLICY_VIOLATION, TransactionUnverified),
        (E.INVALID_PRODUCER_ID_MAPPING, InvalidProducerIdMapping),
        (E.INVALID_TXN_STATE, InvalidTransactionState),
    ],
)
def test_errors_of_batches(error: TransactionError, kind: type[Exception]) -> None:
    assert type(append_error(error)) is kind


async def test_a_deleted_topic_has_ended_and_others_have_not(world: World) -> None:
    live = await world.topic()
    here, gone = PartitionId(live.topic.id, 0), PartitionId(UUID(int=5), 0)
    missing, group = PartitionId(live.topic.id, 7), GroupId("g")
    with structlog.testing.capture_logs() as lines:
        ended = await world.broker.transactions.participants.end(call(here, gone, missing, group))
    assert set(ended) == {here, gone, group}
    assert [line["participants"] for line in lines] == [1]


async def test_a_later_epoch_has_ended_it(world: World) -> None:
    live = await world.topic()
    here = PartitionId(live.topic.id, 0)
    transactions = world.broker.transactions
    assert set(await transactions.participants.end(call(here, epoch=5))) == {here}
    assert set(await transactions.participants.end(call(here, epoch=4))) == {here}


async def test_a_topic_that_may_exist_has_not_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(topic_id: UUID) -> LiveTopic | None:
        raise StorageUnavailable("not loaded")

    monkeypatch.setattr(world.broker.topics.others, "find", unknown)
    with structlog.testing.capture_logs() as lines:
        assert await world.broker.transactions.participants.end(call(PartitionId(UUID(int=5), 0))) == []
    assert [line["reason"] for line in lines] == ["not loaded"]


async def test_a_transaction_forgets_a_deleted_topic(world: World) -> None:
    await world.topic()
    producer = await init(world)
    assert isinstance(await send(world, producer), Appended)

    ended: list[Participant] = []

    async def end(called: EndParticipants) -> Collection[Participant]:
        ended.extend(called.participants)
        return called.participants

    await world.broker.topics.delete("flights")
    await turns()
    world.broker.transactions.coordinator.participants = cast("Participants", SimpleNamespace(end=end))
    assert await finish(world, producer, commit=True) is None
    assert ended == []


async def test_offsets_of_a_group(world: World) -> None:
    await world.topic()
    producer_id, epoch = await init(world)
    transactions, groups = world.broker.transactions, world.broker.groups

    async def commit(*, adds: bool) -> None:
        async def verify() -> int:
            return await transactions.join("id", producer_id, epoch, GroupId("g"), adds=adds)

        event = TxnOffsetCommit(
            token=object(),
            transactional_id="id",
            producer_id=producer_id,
            producer_epoch=epoch,
            generation=-1,
            member_id="",
            instance_id=None,
            positions={TopicPartition("flights", 0): OffsetAndMetadata(offset=3, leader_epoch=-1, metadata="")},
        )
        await groups.commit_in_transaction("g", event, verify)

    with pytest.raises(TransactionRefused):
        await commit(adds=False)
    await commit(adds=True)
    asked = OpenTransaction("id", producer_id, epoch, 1)
    assert await transactions.may_end("g", asked)
    assert not await transactions.may_end("other", asked)
    assert groups.unstable("g")
    await world.restart()
    assert world.broker.groups.unstable("g"), "the transaction is still open"
    assert await finish(world, (producer_id, epoch), commit=True) is None
    assert not world.broker.groups.unstable("g")
    assert world.broker.groups.positions("g")[TopicPartition("flights", 0)].offset == 3


async def test_an_older_broker_makes_transactions_unavailable(world: World) -> None:
    await world.topic()
    producer = await init(world)
    transactions, ownership = world.broker.transactions, world.broker.ownership
    older, newer = (
        Member(node_id=9, incarnation="a", process="", host="h", port=1, features=features)
        for features in ((), FEATURES)
    )
    me = Member(node_id=world.broker.node_id, incarnation="me", process="", host="h", port=2)
    with structlog.testing.capture_logs() as lines:
        ownership.view = View(1, (me, older))
        event: Any = Add(token=object(), producer_id=producer[0], epoch=producer[1], participants=(GroupId("g"),))
        for _ in range(2):
            result = await transactions.request("id", event)
            assert result.error is E.COORDINATOR_NOT_AVAILABLE
    assert [(line["log_level"], line["brokers"]) for line in lines] == [("error", [9])]
    assert transactions.coordinator_of("id") == -1
    assert isinstance(await send(world, producer), NotEnoughReplicas)
    with pytest.raises(StorageUnavailable):
        await transactions.may_end("g", OpenTransaction("id", *producer, 1))
    ownership.view = View(2, (me, newer))
    assert transactions.coordinator_of("id") == -1, "not connected with it"
    ownership.view = None
    assert transactions.coordinator_of("id") == world.broker.node_id
    assert isinstance(await send(world, producer), Appended)


async def test_a_reset_forgets_all_ids(world: World) -> None:
    await init(world)
    coordinator = world.broker.transactions.coordinator
    await coordinator.drop_all()
    assert coordinator.names() == await world.storage.transactions.names() == []
    assert (await init(world))[1] == 0


class OtherCoordinators:
    """The other brokers, of which one responds as a test wants."""

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.asked: list[tuple[int, RemoteQuestion]] = []

    async def ask(self, member: Member, question: RemoteQuestion) -> RemoteAnswer:
        self.asked.append((member.node_id, question))
        return RemoteAnswer(self.error)


@pytest.mark.parametrize("error", ["", "COORDINATOR_NOT_AVAILABLE"])
async def test_transactions_of_other_coordinators_are_ended_by_them(error: str) -> None:
    storage, ownership, others = MemoryStorage(), Ownership(1), OtherCoordinators(error)
    storage.transactions.stored["id"] = stored_at(TransactionState.ONGOING)

    async def new_producer_id() -> int:
        raise AssertionError("not here")

    transactions = ClusterTransactions(
        storage.transactions,
        ManualClock(),
        TransactionSettings(),
        new_producer_id,
        ownership,
        "default",
        CooperativeScheduler(),
        lambda: cast("TransactionPeers", others),
    )
    other = Member(node_id=9, incarnation="a", process="", host="h", port=1, features=FEATURES)
    ownership.adopt(View(1, (other,)), inside=True)
    if error:
        with pytest.raises(StorageUnavailable, match=error):
            await transactions.end_all()
    else:
        await transactions.end_all()
    assert others.asked == [(9, RemoteQuestion.to_end("default", "id"))]
    ownership.adopt(View(2, ()), inside=False)
    with pytest.raises(StorageUnavailable, match="not alive"):
        await transactions.end_all()


async def test_a_coordinator_ends_a_transaction_for_another_broker(world: World) -> None:
    await world.topic()
    producer = await init(world)
    assert isinstance(await send(world, producer), Appended)
    transactions = world.broker.transactions
    question = msgspec.json.decode(msgspec.json.encode(RemoteQuestion.to_end("default", "id")), type=RemoteQuestion)
    assert await transactions.answer(question) == RemoteAnswer()
    assert ends(world) == (2, 2)
    assert await transactions.answer(question) == RemoteAnswer()
    assert await transactions.answer(RemoteQuestion.to_end("default", "unknown")) == RemoteAnswer()


async def test_the_other_broker_learns_of_a_transaction_that_does_not_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.topic()
    producer = await init(world)
    assert isinstance(await send(world, producer), Appended)

    async def never(*_: Any) -> tuple[()]:
        return ()

    monkeypatch.setattr(ClusterParticipants, "end", never)
    with structlog.testing.capture_logs() as lines:
        answer = await world.broker.transactions.answer(RemoteQuestion.to_end("default", "id"))
    assert answer == RemoteAnswer("COORDINATOR_NOT_AVAILABLE")
    assert [line["event"] for line in lines] == ["a transaction has not ended"]
