"""What the client library and the server say when something fails, as one plain sentence and an exit status. Pure."""

from confluent_kafka import KafkaError

from headrace.cli.command import Status
from headrace.text.escaping import shown

LOST = frozenset({KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})
"""Codes of a server that does not answer."""
NO_RULES = (
    "no access rules hold at this server: it has to be started with "
    "--set authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
)

_MOST = 600
_SENTENCES: dict[int, tuple[str, Status]] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: ("there is no such topic or partition", Status.MISSING),
    KafkaError._UNKNOWN_TOPIC: ("there is no such topic", Status.MISSING),
    KafkaError._UNKNOWN_PARTITION: ("there is no such partition", Status.MISSING),
    KafkaError.GROUP_ID_NOT_FOUND: ("there is no such group", Status.MISSING),
    KafkaError.TOPIC_EXCEPTION: (
        (
            "a topic name has 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-', differs from others in more than "
            "'.' and '_', and is none of Kafka's internal topics"
        ),
        Status.FAILED,
    ),
    KafkaError.TOPIC_ALREADY_EXISTS: ("it is there already", Status.FAILED),
    KafkaError.NON_EMPTY_GROUP: ("it has members: stop them first", Status.FAILED),
    KafkaError.UNKNOWN_MEMBER_ID: ("it has members: stop them first", Status.FAILED),
    KafkaError.REBALANCE_IN_PROGRESS: ("its members are being rebalanced: stop them first", Status.FAILED),
    KafkaError.OFFSET_OUT_OF_RANGE: ("the log does not have that offset", Status.FAILED),
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "a record is larger than the topic takes: `headrace topics alter` raises its max.message.bytes",
        Status.FAILED,
    ),
    KafkaError._MSG_TIMED_OUT: ("there was no acknowledgement in time", Status.UNREACHABLE),
    KafkaError.COORDINATOR_NOT_AVAILABLE: ("the group's coordinator is not ready: try again", Status.FAILED),
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: ("the group's coordinator is not ready: try again", Status.FAILED),
    KafkaError.KAFKA_STORAGE_ERROR: ("the server cannot use its storage: its log says why", Status.FAILED),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ("this user may not do that with the topic", Status.REFUSED),
    KafkaError.GROUP_AUTHORIZATION_FAILED: ("this user may not do that with the group", Status.REFUSED),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: ("this user may not do that on this cluster", Status.REFUSED),
    KafkaError.SECURITY_DISABLED: (NO_RULES, Status.FAILED),
    KafkaError.UNSUPPORTED_VERSION: ("the server does not have this request", Status.FAILED),
    KafkaError._UNSUPPORTED_FEATURE: ("the server does not have this request", Status.FAILED),
    KafkaError._TRANSPORT: ("the server does not answer any more", Status.UNREACHABLE),
    KafkaError._TIMED_OUT: ("the server does not answer any more", Status.UNREACHABLE),
    KafkaError._ALL_BROKERS_DOWN: ("the server does not answer any more", Status.UNREACHABLE),
    KafkaError._RESOLVE: ("the server names an address that cannot be found (--advertise)", Status.UNREACHABLE),
}
_SAYS_LITTLE = frozenset({KafkaError.SECURITY_DISABLED})
"""Codes with which servers say less than we do."""
_OWN = ("Broker: ", "Local: ")
"""How the client library begins its own texts for a code; anything else is the server's message."""


def sentence(error: KafkaError) -> str:
    """Why it failed, in the server's words where it had some."""
    text = " ".join(error.str().split())
    if not text.startswith(_OWN) and error.code() not in LOST | _SAYS_LITTLE:
        return shown(text, _MOST).rstrip(".")
    if error.code() in _SENTENCES:
        return _SENTENCES[error.code()][0]
    for start in _OWN:
        text = text.removeprefix(start)
    return shown(f"{text[:1].lower()}{text[1:]}", _MOST)


def status(error: KafkaError) -> Status:
    """How a command ends that failed for this."""
    return _SENTENCES.get(error.code(), ("", Status.FAILED))[1]
