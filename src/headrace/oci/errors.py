"""Errors of the OCI API: status, code and message.

Codes: Oracle Cloud Infrastructure API reference, "API Errors". Clients match some messages by regular expression, so
tests compare them.
"""

from headrace.topics import errors as topics

BASE_CODES = {
    400: "InvalidParameter",
    401: "NotAuthenticated",
    403: "NotAllowed",
    404: "NotAuthorizedOrNotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    412: "NoEtagMatch",
    429: "TooManyRequests",
    500: "InternalServerError",
    501: "MethodNotImplemented",
    503: "ServiceUnavailable",
}

CURSOR_EXPIRED = "The cursor is expired. Create a new one."
CURSOR_INVALID = "The cursor is invalid. Create a new one."
CURSOR_BEHIND = "The cursor is outside the retention period and is now invalid."
UNRESERVED = "Trying to commit unreserved partition {partition}"
REQUEST_TOO_LARGE = "Request size is limited to 1 MiB"
BAD_JSON = "Unable to parse JSON body"
TOO_MANY_PARTITIONS = "You exceed the number of allowed partitions"
NOT_AUTHENTICATED = "The required information to complete authentication was not provided or was incorrect."


class OciError(Exception):
    """An error response."""

    def __init__(
        self, status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code or BASE_CODES[status]
        self.message = message
        self.headers = headers or {}


def invalid(message: str) -> OciError:
    """Return 400 InvalidParameter."""
    return OciError(400, message)


def unknown_stream(stream_id: str) -> OciError:
    """404 with the service's message."""
    return OciError(404, f"Unknown stream {stream_id}")


_TOPICS: dict[type[topics.TopicError], tuple[int, str]] = {
    topics.UnknownTopic: (404, "NotAuthorizedOrNotFound"),
    topics.TopicExists: (409, "Conflict"),
    topics.InvalidTopicName: (400, "InvalidParameter"),
    topics.InvalidPartitions: (400, "InvalidParameter"),
    topics.TooManyPartitions: (400, "LimitExceeded"),
    topics.InvalidReplicationFactor: (400, "InvalidParameter"),
    topics.InvalidConfig: (400, "InvalidParameter"),
    topics.OffsetOutOfRange: (400, "InvalidParameter"),
    topics.CorruptBatch: (400, "InvalidParameter"),
    topics.UnsupportedFormat: (400, "InvalidParameter"),
    topics.InvalidRecord: (400, "InvalidParameter"),
    topics.InvalidTimestamp: (400, "InvalidParameter"),
    topics.MessageTooLarge: (400, "InvalidParameter"),
    topics.TooManyProducers: (503, "ServiceUnavailable"),
    topics.UnsupportedCompression: (400, "InvalidParameter"),
    topics.OutOfOrderSequence: (409, "Conflict"),
    topics.BehindRefused: (503, "ServiceUnavailable"),
    topics.InvalidProducerEpoch: (409, "Conflict"),
    topics.InvalidTransactionState: (409, "Conflict"),
    topics.MissingTransactionalId: (400, "InvalidParameter"),
    # Not 5xx: a retry by the SDK cannot help.
    topics.OffsetsExhausted: (400, "LimitExceeded"),
    # Clients retry 503.
    topics.StorageFull: (503, "ServiceUnavailable"),
    topics.StorageUnavailable: (503, "ServiceUnavailable"),
    topics.PartitionOffline: (503, "ServiceUnavailable"),
    topics.UnreadableTopic: (503, "ServiceUnavailable"),
    topics.StorageUnreachable: (503, "ServiceUnavailable"),
    topics.StorageMoving: (503, "ServiceUnavailable"),
    topics.StorageNotWritten: (503, "ServiceUnavailable"),
    topics.StorageNotReplicated: (503, "ServiceUnavailable"),
    topics.NotEnoughReplicas: (503, "ServiceUnavailable"),
    topics.NotEnoughReplicasAfterAppend: (503, "ServiceUnavailable"),
    topics.ArchiveUnavailable: (503, "ServiceUnavailable"),
    topics.Fenced: (503, "ServiceUnavailable"),
    topics.NotLeader: (503, "ServiceUnavailable"),
    topics.TopicChanged: (503, "ServiceUnavailable"),
}


def of_topic_error(error: topics.TopicError) -> OciError:
    """Return the response to a broker error."""
    for kind in type(error).__mro__:
        if kind in _TOPICS:
            status, code = _TOPICS[kind]
            return OciError(status, str(error), code)
    return OciError(500, "Internal error")
