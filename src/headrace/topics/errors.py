"""Errors of topics and partitions. Each API has one table that translates them."""

from collections.abc import Mapping

MOST_SAID = 1_000
"""Maximum characters of a message, which may quote client input. A protocol string has at most 32,767 bytes."""


class TopicError(Exception):
    """Base of topic and partition errors."""

    def __str__(self) -> str:
        return cut(super().__str__())


def cut(message: str) -> str:
    """Return a message, cut to the maximum."""
    return message if len(message) <= MOST_SAID else f"{message[:MOST_SAID]}..."


class UnknownTopic(TopicError):
    """No such topic or partition."""


class UnknownTopicId(UnknownTopic):
    """No topic has this id."""


class TopicExists(TopicError):
    """A topic of that name exists."""


class InvalidTopicName(TopicError):
    """Empty, longer than 249 characters, `.` or `..`, or a character outside `[a-zA-Z0-9._-]` (Kafka's rule)."""


class InvalidPartitions(TopicError):
    """A partition count below 1."""


class TooManyPartitions(TopicError):
    """The server's limit of partitions is reached."""


class InvalidReplicationFactor(TopicError):
    """A replication factor below 1, or above the number of brokers."""


class InvalidConfig(TopicError):
    """An unknown configuration key or invalid value."""


class OffsetOutOfRange(TopicError):
    """An offset below the log start offset or above the log end offset."""


class CorruptBatch(TopicError):
    """A record batch whose length, structure or CRC is wrong."""


class UnsupportedFormat(TopicError):
    """A record set of magic 0 or 1: only record batches (v2) are supported."""


class InvalidRecord(TopicError):
    """A well-formed batch that breaks a rule, such as a control bit or inconsistent counts."""


class InvalidRecords(InvalidRecord):
    """A batch with records that the topic rejects. None of its records is stored."""

    def __init__(self, message: str = "", reasons: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.reasons: Mapping[int, str] = reasons or {}
        """Index of a record in its batch -> why it is rejected, for a limited number of them."""


class InvalidTimestamp(TopicError):
    """A timestamp outside the topic's bounds."""


class MessageTooLarge(TopicError):
    """A record batch larger than `max.message.bytes`."""


class UnsupportedCompression(TopicError):
    """An unknown codec, or one that the request's version may not use."""


class OutOfOrderSequence(TopicError):
    """A producer's sequence that is neither the next one nor one of the last five batches."""


class BehindRefused(OutOfOrderSequence):
    """A sequence after a rejected one: the client must send both again, in order, within 10 s."""


class InvalidProducerEpoch(TopicError):
    """A producer epoch older than the known one."""


class InvalidTransactionState(TopicError):
    """A batch that does not fit the transaction of its producer."""


class TransactionUnverified(InvalidTransactionState):
    """A transactional batch whose transaction ended, or was not confirmed, before it was stored."""


class InvalidProducerIdMapping(InvalidTransactionState):
    """A transactional batch whose transactional id is unknown, or has another producer id."""


class MissingTransactionalId(TopicError):
    """A transactional batch in a request without a transactional id."""


class TooManyProducers(TopicError):
    """An unknown producer while the server's limit of producers is reached."""


class StorageFull(TopicError):
    """Redis refuses writes because its memory is full. Acknowledged records are safe."""


class OffsetsExhausted(TopicError):
    """A batch would get an offset of 2^53 or more. The partition never accepts records again."""


class StorageUnavailable(TopicError):
    """Redis does not respond. The outcome of the last write is unknown."""


class PartitionOffline(StorageUnavailable):
    """A partition's keys in Redis have unexpected contents. The server's log has details."""


class UnreadableTopic(UnknownTopic):
    """The registry's entry of that name is unreadable: the topic can only be deleted."""


class StorageUnreachable(StorageUnavailable):
    """No connection to Redis: nothing was sent, and nothing will happen later."""


class StorageMoving(StorageUnavailable):
    """The keys are moving between shards of a Redis Cluster and cannot be written."""


class StorageNotWritten(StorageUnavailable):
    """Redis refuses writes because it cannot write its own files. Reads work."""


class StorageNotReplicated(StorageUnavailable):
    """Redis refuses writes because it has too few replicas. Reads work, and may be stale."""


class LockLost(StorageUnavailable):
    """Another broker held the lock too long, or this one was paused. Nothing was written."""


class NotEnoughReplicas(TopicError):
    """Fewer servers than `min.insync.replicas` have the log. Nothing was appended."""


class NotEnoughReplicasAfterAppend(TopicError):
    """A batch was appended, but fewer servers than `min.insync.replicas` have it."""


class ArchiveUnavailable(TopicError):
    """Records that are no longer in Redis cannot be read from their archive now."""


class Fenced(TopicError):
    """Another server has taken over this keyspace. This one must not write."""


class NotLeader(TopicError):
    """Another broker leads the partition, or this one is about to. The client must look up the leader again."""


class TopicChanged(TopicError):
    """Another broker has changed the topic. The change must be checked against its new state."""
