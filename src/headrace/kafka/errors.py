"""Error codes for errors of the broker. Source: Kafka protocol guide, "Error codes"."""

from collections.abc import Mapping
from enum import IntEnum

from headrace.groups.errors import GroupError
from headrace.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    ApiVersionsRequest,
    ElectLeadersRequest,
    EndTxnRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from headrace.topics import errors as topics
from headrace.transactions.errors import TransactionError


class Code(IntEnum):
    """Error codes of this server."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    INVALID_REGULAR_EXPRESSION = 128
    SHARE_SESSION_LIMIT_REACHED = 133


_ENDING: frozenset[int | str] = frozenset({Code.CONCURRENT_TRANSACTIONS})
_REJOIN: frozenset[int | str] = frozenset({Code.REBALANCE_IN_PROGRESS})
NORMAL_FLOW: Mapping[int | str, frozenset[int | str]] = {
    # The first join of a new member gets its member ID with this code (KIP-394).
    JoinGroupRequest.API_KEY: frozenset({Code.MEMBER_ID_REQUIRED}) | _REJOIN,
    # A coordinator makes members rejoin by this code.
    HeartbeatRequest.API_KEY: _REJOIN,
    SyncGroupRequest.API_KEY: _REJOIN,
    # A member of a consumer group commits and fetches with its epoch, which may have changed: it tries again.
    OffsetCommitRequest.API_KEY: _REJOIN | {Code.STALE_MEMBER_EPOCH},
    OffsetFetchRequest.API_KEY: frozenset({Code.STALE_MEMBER_EPOCH}),
    # Clients ask with their newest version, and get the supported ones with this code (KIP-511).
    ApiVersionsRequest.API_KEY: frozenset({Code.UNSUPPORTED_VERSION}),
    # The preferred leader leads already.
    ElectLeadersRequest.API_KEY: frozenset({Code.ELECTION_NOT_NEEDED}),
    # The previous transaction is ending: clients ask again.
    InitProducerIdRequest.API_KEY: _ENDING,
    AddPartitionsToTxnRequest.API_KEY: _ENDING,
    AddOffsetsToTxnRequest.API_KEY: _ENDING,
    EndTxnRequest.API_KEY: _ENDING,
}
"""Error codes by API that every healthy client gets, and handles without reporting an error."""


def error_name(error: int | str) -> str:
    """Return Kafka's name of an error code."""
    if isinstance(error, str):
        return error
    return Code(error).name if error in Code._value2member_map_ else str(error)


class RequestError(Exception):
    """An error that exists only in this protocol."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(topics.cut(message))
        self.code = code


_TOPICS: dict[type[topics.TopicError], Code] = {
    topics.UnknownTopic: Code.UNKNOWN_TOPIC_OR_PARTITION,
    topics.UnknownTopicId: Code.UNKNOWN_TOPIC_ID,
    topics.TopicExists: Code.TOPIC_ALREADY_EXISTS,
    topics.InvalidTopicName: Code.INVALID_TOPIC_EXCEPTION,
    topics.InvalidPartitions: Code.INVALID_PARTITIONS,
    topics.InvalidReplicationFactor: Code.INVALID_REPLICATION_FACTOR,
    topics.TooManyPartitions: Code.POLICY_VIOLATION,
    topics.TooManyProducers: Code.POLICY_VIOLATION,
    topics.InvalidConfig: Code.INVALID_CONFIG,
    topics.OffsetOutOfRange: Code.OFFSET_OUT_OF_RANGE,
    topics.CorruptBatch: Code.CORRUPT_MESSAGE,
    # As Kafka 4 for magic 0 and 1 in a Produce request. Clients do not retry it.
    topics.UnsupportedFormat: Code.INVALID_RECORD,
    topics.InvalidRecord: Code.INVALID_RECORD,
    topics.InvalidTimestamp: Code.INVALID_TIMESTAMP,
    topics.MessageTooLarge: Code.MESSAGE_TOO_LARGE,
    topics.UnsupportedCompression: Code.UNSUPPORTED_COMPRESSION_TYPE,
    topics.OutOfOrderSequence: Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    # After OUT_OF_ORDER_SEQUENCE_NUMBER, librdkafka would send all unacknowledged batches in a new producer epoch, and
    # duplicate stored ones.
    topics.BehindRefused: Code.KAFKA_STORAGE_ERROR,
    topics.InvalidProducerEpoch: Code.INVALID_PRODUCER_EPOCH,
    topics.InvalidTransactionState: Code.INVALID_TXN_STATE,
    topics.TransactionUnverified: Code.INVALID_TXN_STATE,
    topics.InvalidProducerIdMapping: Code.INVALID_PRODUCER_ID_MAPPING,
    topics.MissingTransactionalId: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    # No client retries it, and all clients know it (Kafka 0.10.2).
    topics.OffsetsExhausted: Code.POLICY_VIOLATION,
    # Clients retry these after a lookup of the leader.
    topics.StorageFull: Code.KAFKA_STORAGE_ERROR,
    topics.StorageUnavailable: Code.KAFKA_STORAGE_ERROR,
    topics.PartitionOffline: Code.KAFKA_STORAGE_ERROR,
    topics.UnreadableTopic: Code.KAFKA_STORAGE_ERROR,
    topics.StorageUnreachable: Code.KAFKA_STORAGE_ERROR,
    topics.StorageMoving: Code.KAFKA_STORAGE_ERROR,
    topics.StorageNotWritten: Code.KAFKA_STORAGE_ERROR,
    topics.StorageNotReplicated: Code.KAFKA_STORAGE_ERROR,
    topics.NotEnoughReplicas: Code.NOT_ENOUGH_REPLICAS,
    topics.NotEnoughReplicasAfterAppend: Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    topics.ArchiveUnavailable: Code.KAFKA_STORAGE_ERROR,
    topics.Fenced: Code.NOT_LEADER_OR_FOLLOWER,
    topics.NotLeader: Code.NOT_LEADER_OR_FOLLOWER,
    topics.TopicChanged: Code.KAFKA_STORAGE_ERROR,
}

_GROUPS: dict[GroupError, Code] = {error: Code[error.name] for error in GroupError}


def code_of(error: Exception | GroupError | None) -> Code:
    """Return the code of an error: NONE for None, and UNKNOWN_SERVER_ERROR for others."""
    if error is None:
        return Code.NONE
    if isinstance(error, GroupError):
        return _GROUPS[error]
    if isinstance(error, RequestError):
        return error.code
    for kind in type(error).__mro__:
        if kind in _TOPICS:
            return _TOPICS[kind]
    return Code.UNKNOWN_SERVER_ERROR


def transaction_code(error: TransactionError | None, *, fenced: bool, abortable: bool) -> Code:
    """Return the code of a transaction's error.

    `fenced`, `abortable`: whether the version of the request has PRODUCER_FENCED and TRANSACTION_ABORTABLE.
    """
    if error is None:
        return Code.NONE
    if error is TransactionError.PRODUCER_FENCED and not fenced:
        return Code.INVALID_PRODUCER_EPOCH
    if error is TransactionError.TRANSACTION_ABORTABLE and not abortable:
        return Code.INVALID_TXN_STATE
    return Code[error.name]


def check_epoch(present: int, known: int) -> None:
    """Raise RequestError if the client's leader epoch (-1: none) is not the current one (KIP-320)."""
    if known >= 0 and known != present:
        code = Code.FENCED_LEADER_EPOCH if known < present else Code.UNKNOWN_LEADER_EPOCH
        raise RequestError(code, f"leader epoch {known}, now {present}")
