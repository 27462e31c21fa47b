"""Transactions of one virtual cluster: what logs, groups and clients ask, and the coordinators that respond.

The coordinator of a transactional ID may be this or another broker. Logs and groups ask either. Clients find theirs.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter_ns

import structlog

from headrace.aio.tasks import in_slices
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.coordinator.participants import AskGroup, ClusterParticipants, KnownTopics, Peers
from headrace.broker.coordinator.remote_transactions import Question, RemoteAnswer, RemoteQuestion
from headrace.broker.coordinator.transactions import TransactionCoordinator, transaction_ownership
from headrace.broker.partition.admission import AdmitDone
from headrace.broker.ports import TransactionStorage
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.retry import backoff
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.groups.pending_offsets import OpenTransaction
from headrace.membership.view import TRANSACTIONS
from headrace.metrics.counters import Durations
from headrace.topics.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    NotEnoughReplicas,
    StorageUnavailable,
    TopicError,
    TransactionUnverified,
)
from headrace.topics.model import Append
from headrace.topics.transactions import OpenTransaction as OpenInLog
from headrace.transactions.effects import AddResult, LookupResult, Result, VerifyResult, refusal
from headrace.transactions.errors import RETRIABLE, TransactionError
from headrace.transactions.events import Add, Lookup, Request, Verify
from headrace.transactions.model import TV2, GroupId, Participant, PartitionId, TransactionSettings

_AGAIN_MS, _SELDOM_MS, _PATIENCE_MS = 50, 500, 5_000
"""First and longest delay before the coordinator is looked up again, and the time after which the client retries."""
_REMOTE_S = 2.0
"""Maximum seconds for a question of another broker. Others wait for the same response."""
_ENDS_AT_ONCE = 100
"""Transactions that `end_all` ends at the same time."""
_ABORTABLE = frozenset({TransactionError.TRANSACTION_ABORTABLE, TransactionError.POLICY_VIOLATION})
_log = structlog.get_logger("headrace.broker.coordinator")


def append_error(error: TransactionError) -> TopicError:
    """Return the error for a batch whose coordinator has rejected it.

    Older producers do not retry the errors of coordinators. As in Kafka, they get NOT_ENOUGH_REPLICAS instead, which
    all of them retry.
    """
    if error in RETRIABLE or error is TransactionError.COORDINATOR_LOAD_IN_PROGRESS:
        return NotEnoughReplicas(f"the coordinator of the transaction responded with {error.name}")
    if error is TransactionError.PRODUCER_FENCED:
        return InvalidProducerEpoch("a newer producer has the transactional id, or the transaction timed out")
    if error in _ABORTABLE:
        return TransactionUnverified(f"the partition is not in the transaction: {error.name}")
    reason = f"the coordinator of the transaction responded with {error.name}"
    if error is TransactionError.INVALID_PRODUCER_ID_MAPPING:
        return InvalidProducerIdMapping(reason)
    return InvalidTransactionState(reason)


class ClusterTransactions:
    """Transactions of one virtual cluster. Implements `Admit` and `OpenTransactions`."""

    def __init__(
        self,
        storage: TransactionStorage,
        clock: Clock,
        settings: TransactionSettings,
        new_producer_id: Callable[[], Awaitable[int]],
        ownership: Ownership,
        cluster: str,
        lane: CooperativeScheduler,
        peers: Peers = lambda: None,
    ) -> None:
        """Call `connect` before the first request."""
        self._clock = clock
        self._ownership = ownership
        self._cluster = cluster
        self._peers = peers
        self.participants = ClusterParticipants(ownership, cluster, clock, peers)
        self.coordinator = TransactionCoordinator(
            storage,
            clock,
            settings,
            self.participants,
            new_producer_id,
            transaction_ownership(ownership, cluster),
            lane,
        )
        self._topics: KnownTopics
        self._confirming: set[asyncio.Task[None]] = set()
        self._refusing = False
        self.verified = Durations()
        """Time that first batches of transactions have waited for the coordinator."""

    def connect(self, topics: KnownTopics, ask_group: AskGroup) -> None:
        """Use these topics and groups as participants."""
        self._topics = topics
        self.participants.connect(topics, ask_group)

    @property
    def unavailable(self) -> bool:
        """Whether a live broker has no transactions between brokers. Logs the first refusal."""
        others = self._ownership.others
        without = [each.node_id for each in others if TRANSACTIONS not in each.features]
        if without and not self._refusing:
            _log.error("transactions are rejected: brokers run a version without them", brokers=without)
        self._refusing = bool(without)
        return self._refusing or (bool(others) and self._peers() is None)

    def coordinator_of(self, transactional_id: str) -> int:
        """Return the node ID of the coordinator. -1: none."""
        return -1 if self.unavailable else self._owner_of(transactional_id)

    def _owner_of(self, transactional_id: str) -> int:
        return self._ownership.owner_of(self._ownership.transaction_key(self._cluster, transactional_id))

    async def request(self, name: str, event: Request, given_up: Callable[[], bool] = lambda: False) -> Result:
        """Send a client's request to the coordinator, which must be this broker.

        See `TransactionCoordinator.request`.
        """
        if self.unavailable:
            return refusal(event, TransactionError.COORDINATOR_NOT_AVAILABLE)
        return await self.coordinator.request(name, event, given_up)

    async def answer(self, question: RemoteQuestion) -> RemoteAnswer:
        """Respond to a question of another broker as the coordinator."""
        if question.kind == "end":
            return await self._end_for_other(question.transactional_id)
        event = question.event()
        try:
            async with asyncio.timeout(_REMOTE_S):
                result = await self.coordinator.request(question.transactional_id, event)
        except TimeoutError:
            result = refusal(event, TransactionError.COORDINATOR_LOAD_IN_PROGRESS)
        return RemoteAnswer.of(result)

    async def _end_for_other(self, name: str) -> RemoteAnswer:
        try:
            async with asyncio.timeout(_REMOTE_S):
                await self.coordinator.end_open(name)
        except (TopicError, TimeoutError) as error:
            _log.warning("a transaction has not ended", transactional_id=name, reason=str(error) or "timeout")
            return RemoteAnswer(TransactionError.COORDINATOR_NOT_AVAILABLE.name)
        return RemoteAnswer()

    async def end_all(self) -> None:
        """Abort the ongoing transactions of all brokers, and end the decided ones.

        Their participants may outlive the virtual cluster: topics that moved to another one. Raises StorageUnavailable
        if one has not ended; call again.
        """
        async for _ in in_slices(await self.coordinator.all_names(), self._end_open, _ENDS_AT_ONCE):
            pass

    async def _end_open(self, name: str) -> None:
        owner = self._owner_of(name)
        if owner == self._ownership.node_id:
            await self.coordinator.end_open(name)
            return
        member, peers = self._ownership.member(owner), self._peers()
        if member is None or peers is None:
            raise StorageUnavailable(f"transactional ID {name!r}: broker {owner} is not alive")
        answer = await peers.ask(member, RemoteQuestion.to_end(self._cluster, name))
        if answer.error:
            raise StorageUnavailable(f"transactional ID {name!r}: broker {owner} responds with {answer.error}")

    async def _ask(self, name: str, event: Question, given_up: Callable[[], bool]) -> Result:
        """Ask the coordinator of a transactional ID on any broker, and the next one if it moves."""
        until_ms = self._clock.ticks_ms() + _PATIENCE_MS
        again = backoff(self._clock, _AGAIN_MS, _SELDOM_MS)
        while True:
            result = await self._ask_owner(name, event, given_up)
            moved = result.error is TransactionError.NOT_COORDINATOR and bool(self._ownership.others)
            if not moved or given_up() or self._clock.ticks_ms() >= until_ms:
                return result
            await again.pause()

    async def _ask_owner(self, name: str, event: Question, given_up: Callable[[], bool]) -> Result:
        if self.unavailable:
            return refusal(event, TransactionError.COORDINATOR_NOT_AVAILABLE)
        owner = self._owner_of(name)
        if owner == self._ownership.node_id:
            return await self.coordinator.request(name, event, given_up)
        member, peers = self._ownership.member(owner), self._peers()
        if member is None or peers is None:
            return refusal(event, TransactionError.NOT_COORDINATOR)
        try:
            answer = await peers.ask(member, RemoteQuestion.of(self._cluster, name, event))
        except StorageUnavailable:
            return refusal(event, TransactionError.NOT_COORDINATOR)
        return answer.result(event)

    # Questions of logs and groups

    def admit(self, topic: str, index: int, append: Append, done: AdmitDone) -> None:
        """See `Admit`."""
        try:
            live = self._topics.named(topic)
        except TopicError as error:
            done(error)
            return
        participant = PartitionId(live.topic.id, index)
        task = asyncio.get_running_loop().create_task(
            self._confirm(participant, live.config.min_insync_replicas, append, done), name="transactional batch"
        )
        self._confirming.add(task)
        task.add_done_callback(self._confirming.discard)

    async def _confirm(self, participant: PartitionId, copies: int, append: Append, done: AdmitDone) -> None:
        began_ns = perf_counter_ns()
        # Clients retry it, at the next server.
        result: int | Exception = StorageUnavailable("the server stops")
        try:
            assert append.transaction
            result = await self.join(
                append.transaction,
                append.producer_id,
                append.producer_epoch,
                participant,
                adds=append.adds_partition,
                copies=copies,
            )
        except TransactionRefused as error:
            result = append_error(error.error)
        finally:
            self.verified.add((perf_counter_ns() - began_ns) // 1_000)
            done(result)

    async def join(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        participant: Participant,
        *,
        adds: bool,
        copies: int = 1,
        given_up: Callable[[], bool] = lambda: False,
    ) -> int:
        """Return the number of a transaction once its coordinator confirms that it includes a participant.

        `adds`: whether the coordinator adds the participant (KIP-890). Raises TransactionRefused.
        """
        participants = (participant,)
        event: Add | Verify
        if adds:
            event = Add(
                token=object(),
                producer_id=producer_id,
                epoch=epoch,
                participants=participants,
                version=TV2,
                copies=copies,
            )
        else:
            event = Verify(token=object(), producer_id=producer_id, epoch=epoch, participants=participants)
        result = await self._ask(transactional_id, event, given_up)
        assert isinstance(result, AddResult | VerifyResult)
        if result.error is not None:
            raise TransactionRefused(result.error)
        if isinstance(result, VerifyResult) and participant in result.missing:
            raise TransactionRefused(TransactionError.TRANSACTION_ABORTABLE)
        return result.number

    async def may_end(self, group: str, transaction: OpenTransaction) -> bool:
        """See `OpenTransactions`."""
        return await self._look_up(
            transaction.transactional_id, transaction.producer_id, transaction.producer_epoch, GroupId(group)
        )

    async def may_end_in(self, transaction: OpenInLog, partition: PartitionId) -> bool:
        """Return whether a transaction may still end in a partition. False is reliable.

        Raises StorageUnavailable if it is unknown now.
        """
        return await self._look_up(transaction.transactional_id, transaction.producer_id, transaction.epoch, partition)

    async def _look_up(self, transactional_id: str, producer_id: int, epoch: int, participant: Participant) -> bool:
        event = Lookup(token=object(), producer_id=producer_id, epoch=epoch, participant=participant)
        result = await self._ask(transactional_id, event, lambda: False)
        assert isinstance(result, LookupResult)
        if result.error is not None:
            raise StorageUnavailable(f"transactional ID {transactional_id!r}: {result.error.name}")
        return result.open

    async def stop(self) -> None:
        """Stop the coordinator. Batches that wait for it are rejected."""
        for task in tuple(self._confirming):
            task.cancel()
        await self.coordinator.stop()


class TransactionRefused(Exception):
    """The coordinator of a transaction has rejected a request of a participant."""

    def __init__(self, error: TransactionError) -> None:
        super().__init__(error.name)
        self.error = error
