"""Transactions of Kafka's protocol, for producers that prepare them and for programs that end those of others.

A cluster with `transaction.version` 2 has the second protocol (KIP-890): each end changes the producer's epoch, and
partitions join a transaction by their first batch. Otherwise the first one is used (KIP-98), as with Kafka before 4.0.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from headrace.aio.retry import pauses
from headrace.client.cluster import Cluster, Committed, Stale, by_topic, check, on_topic
from headrace.client.connection import Connection
from headrace.client.errors import (
    Code,
    DecisionError,
    Fenced,
    GroupCommitFailed,
    OptionError,
    ServerUnavailable,
)
from headrace.client.offsets import TopicPartition
from headrace.client.produce import Batch, Producer
from headrace.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
)

TIMEOUT_MS: Final = 15 * 60_000
"""Default of `kafka.transaction.timeout.ms` here, and of the server's maximum in Kafka."""
_MAX_TIMEOUT: Final = "transaction.max.timeout.ms"
_FEATURE: Final = "transaction.version"
_SECOND: Final = 2
_ONGOING: Final = "Ongoing"
_INIT, _ADD_PARTITIONS, _ADD_OFFSETS = 5, 3, 3
_COMMIT_OFFSETS: Final = {1: 4, _SECOND: 5}
_END: Final = {1: 4, _SECOND: 5}
_AT_ONCE: Final = 64
"""Transactions that end at once."""
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 1.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class Identity:
    """A producer with a transactional ID."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int
    """Of the transaction protocol, 1 or 2."""

    def __str__(self) -> str:
        return f"transactional ID {self.transactional_id!r}"


class Transactions:
    """The coordinators of a cluster. Not thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._timeout_ms = cluster.options.transaction_timeout_ms

    def begin(self, transactional_id: str) -> Identity:
        """Become the producer of an ID: fence the one before, and abort its transaction.

        Raises OptionError if the server does not allow the timeout, LoginRefused, ServerUnavailable.
        """
        answer = self.patiently(lambda: self._begin(transactional_id, self._timeout_ms or TIMEOUT_MS))
        if isinstance(answer, Identity):
            return answer
        highest = self.cluster.broker_setting(_MAX_TIMEOUT)
        if self._timeout_ms is not None or highest is None:
            asked = self._timeout_ms or TIMEOUT_MS
            raise OptionError(
                f"the server allows no transaction of {asked:,} ms: set option 'kafka.transaction.timeout.ms' to at "
                f"most its {_MAX_TIMEOUT}{'' if highest is None else f', {int(highest):,}'}"
            )
        self._timeout_ms = int(highest)
        return self.begin(transactional_id)

    def commit_offsets(self, identity: Identity, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit offsets of a group in the producer's transaction.

        Raises Fenced, GroupCommitFailed if only the group's members may commit, DecisionError for too long metadata,
        LoginRefused, ServerUnavailable. Kafka, and Headrace, accept these offsets also if a classic group has members.
        """
        if identity.version < _SECOND:
            self.patiently(lambda: self._add_group(identity, group))
        self.patiently(lambda: self._commit_offsets(identity, group, offsets))

    def add_partitions(self, identity: Identity, partitions: Sequence[TopicPartition]) -> None:
        """Add partitions to the transaction; the second protocol needs no call. Raises as `commit_offsets`."""
        if identity.version < _SECOND:
            self.patiently(lambda: self._add_partitions(identity, partitions))

    def end(self, identity: Identity, *, commit: bool) -> Identity:
        """End the transaction, which another process may have prepared; return the producer of the next one.

        A repeated end succeeds. Raises Fenced, LoginRefused, ServerUnavailable.
        """
        return self.patiently(lambda: self._end(identity, commit))

    def end_all(self, identities: Sequence[Identity], *, commit: bool) -> list[Fenced | None]:
        """End transactions as `end`; return why each one could not be ended, in their order, or None.

        Raises LoginRefused, ServerUnavailable. Some of them may have ended then; ending them again succeeds.
        """
        found: list[Fenced | None] = []
        for at in range(0, len(identities), _AT_ONCE):
            ended: dict[Identity, Fenced | None] = {}
            some = identities[at : at + _AT_ONCE]
            self.patiently(partial(self._end_some, some, commit, ended))
            found += (ended[one] for one in some)
        return found

    def ongoing(self, chosen: Callable[[str], bool]) -> list[Identity] | None:
        """Return the ongoing transactions of chosen IDs; None if the cluster does not list any (Kafka before 3.0).

        Raises LoginRefused, ServerUnavailable.
        """
        return self.patiently(lambda: self._ongoing(chosen))

    def ongoing_of(self, identities: Sequence[Identity]) -> list[Identity]:
        """Return those of the transactions that are ongoing, from their coordinators.

        `ongoing` misses transactions while their coordinator moves or loads them. Raises LoginRefused,
        ServerUnavailable.
        """
        found: list[Identity] = []
        for at in range(0, len(identities), _AT_ONCE):
            found += self.patiently(partial(self._ongoing_of, identities[at : at + _AT_ONCE]))
        return found

    def committed(self, group: str) -> dict[TopicPartition, Committed]:
        """Return a group's committed offsets, after transactions that are about to end. Raises as `ongoing`."""
        return self.patiently(lambda: self.cluster.committed(group, stable=True))

    def patiently(self, action: Callable[[], _T]) -> _T:
        """Retry what a coordinator cannot do yet, for the time of a request. Raises ServerUnavailable."""
        deadline = time.monotonic() + self.cluster.options.timeout_s
        for pause in pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S):
            try:
                return action()
            except (Stale, ServerUnavailable) as error:
                if time.monotonic() > deadline:
                    raise ServerUnavailable(str(error)) from error
                if isinstance(error, ServerUnavailable):
                    self.cluster.forget()
            time.sleep(pause)
        raise AssertionError("unreachable")

    def _coordinator(self, identity: Identity) -> Connection:
        return self.cluster.coordinator(identity.transactional_id, transactional=True)

    def _begin(self, transactional_id: str, timeout_ms: int) -> Identity | None:
        connection = self.cluster.coordinator(transactional_id, transactional=True)
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        answer = connection.ask(request, highest=_INIT)
        if answer.error_code == Code.INVALID_TRANSACTION_TIMEOUT:
            return None
        what = f"transactional ID {transactional_id!r}"
        # An epoch that another producer has just raised: the next request gets a later one.
        if answer.error_code in {Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED}:
            raise Stale(f"{what}: another producer begins")
        check(answer.error_code, what, f"Write on {what}")
        return Identity(transactional_id, answer.producer_id, answer.producer_epoch, _version(connection))

    def _add_group(self, identity: Identity, group: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            group_id=group,
        )
        answer = self._coordinator(identity).ask(request, highest=_ADD_OFFSETS)
        check(answer.error_code, f"{identity}, group {group!r}", f"Read on group {group!r}")

    def _commit_offsets(self, identity: Identity, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        request = TxnOffsetCommitRequest(
            transactional_id=identity.transactional_id,
            group_id=group,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=offsets[TopicPartition(topic, number)].offset,
                            committed_metadata=offsets[TopicPartition(topic, number)].metadata,
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(offsets).items()
            ],
        )
        answer = self.cluster.coordinator(group).ask(request, highest=_COMMIT_OFFSETS[identity.version])
        for topic in answer.topics:
            for one in topic.partitions:
                if one.error_code in {Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION}:
                    raise GroupCommitFailed(f"group {group!r} has members: choose another 'transactionalId'")
                if one.error_code == Code.OFFSET_METADATA_TOO_LARGE:
                    raise DecisionError(
                        "the server's offset.metadata.max.bytes is too small for the transactions of this batch"
                    )
                refused = one.error_code == Code.TOPIC_AUTHORIZATION_FAILED
                needs = on_topic("Read", topic.name) if refused else f"Read on group {group!r}"
                check(one.error_code, f"{identity}, group {group!r}", needs)

    def _add_partitions(self, identity: Identity, partitions: Sequence[TopicPartition]) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=identity.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=numbers)
                for topic, numbers in by_topic(partitions).items()
            ],
        )
        answer = self._coordinator(identity).ask(request, highest=_ADD_PARTITIONS)
        for topic in answer.results_by_topic_v3_and_below:
            for one in topic.results_by_partition:
                what = f"{identity}, {topic.name}-{one.partition_index}"
                check(one.partition_error_code, what, on_topic("Write", topic.name))

    def _end(self, identity: Identity, commit: bool) -> Identity:
        answer = self._coordinator(identity).ask(_ending(identity, commit), highest=_END[identity.version])
        check(answer.error_code, str(identity), f"Write on {identity}")
        if identity.version < _SECOND:
            return identity
        return replace(identity, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)

    def _end_some(self, identities: Sequence[Identity], commit: bool, ended: dict[Identity, Fenced | None]) -> None:
        """End those that have not ended yet. Each coordinator has all its requests before the first response."""
        open_ = [one for one in identities if one not in ended]
        names = [one.transactional_id for one in open_]
        # All connections first: the cluster replaces one with pending responses.
        connections = self.cluster.coordinators(names, transactional=True)
        for one, connection in zip(open_, connections, strict=True):
            connection.send(_ending(one, commit), highest=_END[one.version])
        failure: Stale | ServerUnavailable | None = None
        for one, connection in zip(open_, connections, strict=True):
            answer = connection.receive()
            try:
                check(answer.error_code, str(one), f"Write on {one}")
                ended[one] = None
            except Fenced as error:
                ended[one] = error
            except (Stale, ServerUnavailable) as error:
                failure = error
        if failure is not None:
            raise failure

    def _ongoing(self, chosen: Callable[[str], bool]) -> list[Identity] | None:
        found: list[Identity] = []
        for connection in self.cluster.brokers():
            if not connection.supports(ListTransactionsRequest):
                return None
            listed = connection.ask(ListTransactionsRequest(state_filters=[_ONGOING], producer_id_filters=[]))
            check(listed.error_code, "transactions", "Describe on transactional IDs")
            names = [one.transactional_id for one in listed.transaction_states if chosen(one.transactional_id)]
            if names:
                version = _version(connection)
                answer = connection.ask(DescribeTransactionsRequest(transactional_ids=names))
                found += [
                    Identity(one.transactional_id, one.producer_id, one.producer_epoch, version)
                    for one in answer.transaction_states
                    if one.error_code == 0 and one.transaction_state == _ONGOING
                ]
        return found

    def _ongoing_of(self, identities: Sequence[Identity]) -> list[Identity]:
        names = [one.transactional_id for one in identities]
        connections = self.cluster.coordinators(names, transactional=True)
        for name, connection in zip(names, connections, strict=True):
            connection.send(DescribeTransactionsRequest(transactional_ids=[name]))
        # All responses first: the cluster replaces a connection with pending ones.
        states = [connection.receive().transaction_states[0] for connection in connections]
        found: list[Identity] = []
        for one, state in zip(identities, states, strict=True):
            if state.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND:
                continue
            check(state.error_code, str(one), f"Describe on {one}")
            same = (state.producer_id, state.producer_epoch) == (one.producer_id, one.producer_epoch)
            if same and state.transaction_state == _ONGOING:
                found.append(one)
        return found


def _ending(identity: Identity, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=identity.transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=commit,
    )


def _version(connection: Connection) -> int:
    return _SECOND if connection.features.get(_FEATURE, 0) >= _SECOND else 1


class TransactionalProducer(Producer):
    """Sends batches in a transaction, each at most once: they must have the producer's ID, epoch and sequence."""

    _FIRST_PRODUCE: Final = 11

    def __init__(self, transactions: Transactions, identity: Identity) -> None:
        second = identity.version >= _SECOND
        super().__init__(
            transactions.cluster,
            identity.transactional_id,
            highest=None if second else self._FIRST_PRODUCE,
        )
        self._transactions = transactions
        self._identity = identity
        self._added: set[TopicPartition] = set()

    def send(self, partition: TopicPartition, batch: Batch) -> None:
        """Queue a batch. Raises as Producer, and Fenced."""
        if partition not in self._added:
            self._transactions.add_partitions(self._identity, [partition])
            self._added.add(partition)
        super().send(partition, batch)


__all__ = ["TIMEOUT_MS", "Fenced", "Identity", "TransactionalProducer", "Transactions"]
