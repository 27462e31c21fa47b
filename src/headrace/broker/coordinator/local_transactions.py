"""Transactions of one virtual cluster on this server: the coordinator, its participants, and what both sides ask.

Ends and verifications do not reach other brokers yet, so transactions need a single broker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from time import perf_counter_ns
from typing import Protocol
from uuid import UUID

import structlog

from headrace.aio.tasks import in_slices
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.coordinator.transactions import TransactionCoordinator, transaction_ownership
from headrace.broker.partition.admission import AdmitDone
from headrace.broker.partition.participant import transaction_ended
from headrace.broker.ports import TransactionStorage
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.broker.topics.live import LiveTopic
from headrace.groups.effects import EndOffsetsResult
from headrace.groups.effects import Result as GroupResult
from headrace.groups.errors import GroupError
from headrace.groups.events import EndOffsets
from headrace.groups.pending_offsets import OpenTransaction
from headrace.metrics.counters import Durations
from headrace.records.markers import NUMBERS, Marker
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
from headrace.transactions.effects import AddResult, EndParticipants, LookupResult, Result, VerifyResult, refusal
from headrace.transactions.errors import RETRIABLE, TransactionError
from headrace.transactions.events import Add, Lookup, Request, Verify
from headrace.transactions.model import TV2, GroupId, Participant, PartitionId, TransactionSettings

_AT_ONCE = 500
"""Participants that end at the same time."""
_ONE_S = 5.0
"""Maximum seconds for one participant. The coordinator calls again."""
_ALL_MS = 15_000
"""Milliseconds after which no more participants are called, so that the coordinator learns which have ended."""
_ABORTABLE = frozenset({TransactionError.TRANSACTION_ABORTABLE, TransactionError.POLICY_VIOLATION})
_log = structlog.get_logger("headrace.broker.coordinator")


class KnownTopics(Protocol):
    """Topics by name in the virtual cluster, and by ID in all of them."""

    def named(self, name: str) -> LiveTopic:
        """Return a topic. Raises UnknownTopic."""

    def anywhere(self, topic_id: UUID) -> LiveTopic | None:
        """Return a topic, or None if it was deleted. Raises StorageUnavailable if this is not certain."""


AskGroup = Callable[[str, EndOffsets], Awaitable[GroupResult]]
"""Sends a request to a group."""


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


class LocalTransactions:
    """Transactions of one virtual cluster. Implements `Participants`, `Admit` and `OpenTransactions`."""

    def __init__(
        self,
        storage: TransactionStorage,
        clock: Clock,
        settings: TransactionSettings,
        new_producer_id: Callable[[], Awaitable[int]],
        ownership: Ownership,
        cluster: str,
        lane: CooperativeScheduler,
    ) -> None:
        """Call `connect` before the first request."""
        self._clock = clock
        self._ownership = ownership
        self._key = partial(ownership.transaction_key, cluster)
        self.coordinator = TransactionCoordinator(
            storage, clock, settings, self, new_producer_id, transaction_ownership(ownership, cluster), lane
        )
        self._topics: KnownTopics
        self._ask_group: AskGroup
        self._confirming: set[asyncio.Task[None]] = set()
        self._refusing = False
        self.verified = Durations()
        """Time that first batches of transactions have waited for the coordinator."""

    def connect(self, topics: KnownTopics, ask_group: AskGroup) -> None:
        """Use these topics and groups as participants."""
        self._topics = topics
        self._ask_group = ask_group

    @property
    def unavailable(self) -> bool:
        """Whether other brokers are alive, which ends of transactions do not reach. Logs the first refusal."""
        others = len(self._ownership.others)
        if others and not self._refusing:
            _log.error("transactions are rejected: they need a single broker", brokers=others + 1)
        self._refusing = bool(others)
        return self._refusing

    def coordinator_of(self, transactional_id: str) -> int:
        """Return the node ID of the coordinator. -1: none."""
        return -1 if self.unavailable else self._ownership.owner_of(self._key(transactional_id))

    async def request(self, name: str, event: Request, given_up: Callable[[], bool] = lambda: False) -> Result:
        """See `TransactionCoordinator.request`."""
        if self.unavailable:
            return refusal(event, TransactionError.COORDINATOR_NOT_AVAILABLE)
        return await self.coordinator.request(name, event, given_up)

    # Participants

    async def end(self, call: EndParticipants) -> Collection[Participant]:
        """See `Participants`."""
        until_ms = self._clock.ticks_ms() + _ALL_MS
        ended: list[Participant] = []
        errors: list[str] = []
        async for part in in_slices(call.participants, partial(self._end_one, call), _AT_ONCE):
            ended += (each for each, error in part if not error)
            errors += (error for _, error in part if error)
            if self._clock.ticks_ms() >= until_ms:
                break
        if errors:
            _log.warning(
                "participants have not ended a transaction yet",
                producer_id=call.producer_id,
                participants=len(errors),
                reason=errors[0],
            )
        return ended

    async def _end_one(self, call: EndParticipants, participant: Participant) -> str:
        """Return why a participant has not ended the transaction. Empty: it has."""
        try:
            async with asyncio.timeout(_ONE_S):
                if isinstance(participant, GroupId):
                    return await self._end_group(call, participant)
                await self._end_partition(call, participant)
        except InvalidProducerEpoch:
            # A later epoch, for example of an administrator's marker, has ended it.
            return ""
        except (TopicError, TimeoutError) as error:
            return str(error) or type(error).__name__
        return ""

    async def _end_partition(self, call: EndParticipants, participant: PartitionId) -> None:
        live = self._topics.anywhere(participant.topic_id)
        if live is None:
            if self.unavailable:
                raise StorageUnavailable("another broker may have moved the topic")
            return
        partition = live.partition(participant.index)
        partition.check_led()
        if partition.log is None:
            # Converted to a native topic, which has no transactions.
            return
        marker = Marker(call.producer_id, call.epoch, call.commit, call.number % NUMBERS)
        await transaction_ended(partition.log, marker)

    async def _end_group(self, call: EndParticipants, participant: GroupId) -> str:
        event = EndOffsets(
            token=object(),
            producer_id=call.producer_id,
            producer_epoch=call.epoch,
            commit=call.commit,
            number=call.number,
        )
        result = await self._ask_group(participant.name, event)
        assert isinstance(result, EndOffsetsResult)
        if result.error is None or result.error is GroupError.INVALID_PRODUCER_EPOCH:
            return ""
        return f"group {participant.name!r}: {result.error.name}"

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
        result = await self.request(transactional_id, event, given_up)
        assert isinstance(result, AddResult | VerifyResult)
        if result.error is not None:
            raise TransactionRefused(result.error)
        if isinstance(result, VerifyResult) and participant in result.missing:
            raise TransactionRefused(TransactionError.TRANSACTION_ABORTABLE)
        return result.number

    async def may_end(self, group: str, transaction: OpenTransaction) -> bool:
        """See `OpenTransactions`."""
        event = Lookup(
            token=object(),
            producer_id=transaction.producer_id,
            epoch=transaction.producer_epoch,
            participant=GroupId(group),
        )
        result = await self.request(transaction.transactional_id, event)
        assert isinstance(result, LookupResult)
        if result.error is not None:
            raise StorageUnavailable(f"transactional ID {transaction.transactional_id!r}: {result.error.name}")
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
