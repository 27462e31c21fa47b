"""What can go wrong with topics and partitions. Each API has one table that translates these."""

MOST_SAID = 1_000
"""Maximum characters of a message, which may quote client input. A string's limit is 32,767 bytes."""


class TopicError(Exception):
    """Base of topic and partition errors."""

    def __str__(self) -> str:
        return cut(super().__str__())


def cut(message: str) -> str:
    """A message as it is said."""
    return message if len(message) <= MOST_SAID else f"{message[:MOST_SAID]}..."


class UnknownTopic(TopicError):
    """No topic of that name or id, or no such partition in it."""


class TopicExists(TopicError):
    """A topic of that name is already there."""


class InvalidTopicName(TopicError):
    """Empty, longer than 249 characters, `.` or `..`, or a character outside `[a-zA-Z0-9._-]` (Kafka's rule)."""


class InvalidPartitions(TopicError):
    """A partition count below 1."""


class TooManyPartitions(TopicError):
    """More partitions than the server may have in all."""


class InvalidReplicationFactor(TopicError):
    """A replication factor below 1, or larger than there are brokers."""


class InvalidConfig(TopicError):
    """An unknown configuration key, or a value it does not take."""


class OffsetOutOfRange(TopicError):
    """An offset below the log start or above the log end."""


class CorruptBatch(TopicError):
    """A record batch whose length, structure or CRC is wrong."""


class UnsupportedFormat(TopicError):
    """A record set of magic 0 or 1: only record batches (v2) are taken."""


class InvalidRecord(TopicError):
    """A well-formed batch that breaks a rule: control bit, counts that disagree."""


class InvalidTimestamp(TopicError):
    """A timestamp outside the topic's bounds."""


class MessageTooLarge(TopicError):
    """A record batch larger than `max.message.bytes`."""


class UnsupportedCompression(TopicError):
    """A codec that the request's version may not use, or that does not exist."""


class OutOfOrderSequence(TopicError):
    """A producer's sequence that is neither the next one nor one of the last five batches."""


class BehindRefused(OutOfOrderSequence):
    """A sequence after one that was rejected: the client must send both again, in order, within ten seconds."""


class InvalidProducerEpoch(TopicError):
    """A producer epoch older than the one known."""


class TooManyProducers(TopicError):
    """A producer that its partition does not know, where the server knows as many as it may."""


class StorageFull(TopicError):
    """Redis refuses writes because its memory is full; what was acknowledged is safe."""


class OffsetsExhausted(TopicError):
    """A batch would get an offset of 2^53 or more. The partition never takes records again."""


class StorageUnavailable(TopicError):
    """Redis does not answer; whether the last write happened is not known."""


class PartitionOffline(StorageUnavailable):
    """A partition's keys in Redis hold something else than the server keeps there; see its log for what."""


class UnreadableTopic(UnknownTopic):
    """The registry has an entry of that name, and it cannot be read: the topic can only be deleted."""


class StorageUnreachable(StorageUnavailable):
    """There is no connection to Redis: nothing was sent, and nothing will happen later."""


class StorageMoving(StorageUnavailable):
    """The keys are moving between shards of a Redis Cluster and cannot be written."""


class StorageNotWritten(StorageUnavailable):
    """Redis takes no writes, since it cannot write its own files; it can be read."""


class StorageNotReplicated(StorageUnavailable):
    """Redis takes no writes, since fewer replicas follow it than it wants; it can be read, and may be old."""


class LockLost(StorageUnavailable):
    """Another broker held the lock for too long, or this one was paused: nothing was written."""


class NotEnoughReplicas(TopicError):
    """Fewer servers have the log than `min.insync.replicas` asks for; nothing was appended."""


class NotEnoughReplicasAfterAppend(TopicError):
    """A batch was appended, and fewer servers have it than `min.insync.replicas` asks for."""


class ArchiveUnavailable(TopicError):
    """Records that are not in Redis any more cannot be read from their archive just now."""


class Fenced(TopicError):
    """Another server has taken this keyspace over; this one may not write any more."""


class NotLeader(TopicError):
    """Another broker owns the partition, or this one is about to; the client has to look for the leader again."""


class TopicChanged(TopicError):
    """Another broker has changed the topic meanwhile: what was to be changed has to be looked at again."""
