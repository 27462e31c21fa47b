"""Shared parts of the group operations."""

from datetime import UTC, datetime, timedelta
from enum import Enum
from uuid import uuid4

from headrace.broker.coordinator.instances import GroupCursor, InstanceError, InstanceProblem, Start, StartKind
from headrace.broker.topics.live import LiveTopic
from headrace.oci.api.service import OciService
from headrace.oci.cursors import LONGEST_NAME, InstanceCursor, of_group
from headrace.oci.errors import CURSOR_BEHIND, CURSOR_INVALID, UNRESERVED, OciError, invalid

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class GroupStart(Enum):
    """The start position of a group."""

    AT_TIME = "AT_TIME"
    LATEST = "LATEST"
    TRIM_HORIZON = "TRIM_HORIZON"


def ms_of(time: datetime) -> int:
    """Return milliseconds since 1970. A time without zone is UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // _MS


def start_of(kind: GroupStart, time: datetime | None) -> Start:
    """Return the requested start. Raises OciError 400."""
    if kind is not GroupStart.AT_TIME:
        return Start(StartKind[kind.name])
    if time is None:
        raise OciError(400, "Missing field time, which AT_TIME needs", "MissingParameter")
    return Start(StartKind.AT_TIME, max(ms_of(time), 0))


def check_name(name: str, what: str) -> str:
    """Return a valid name. Raises OciError 400."""
    size = len(name.encode())
    if not 1 <= size <= LONGEST_NAME:
        raise invalid(f"Invalid {what}: 1 to {LONGEST_NAME} bytes are taken, not {size}")
    return name


def new_instance_name() -> str:
    """Return a new name."""
    return str(uuid4())


def read_instance(service: OciService, topic: LiveTopic, token: str) -> GroupCursor:
    """Return an instance's cursor. Raises OciError 400."""
    cursor = service.read_cursor(topic, token)
    if not isinstance(cursor, InstanceCursor):
        raise invalid(CURSOR_INVALID)
    return cursor.cursor()


def sign_instance(service: OciService, topic: LiveTopic, cursor: GroupCursor) -> str:
    """Return the token."""
    return service.signer.sign(of_group(topic.topic.id, service.cursor_expiry_ms(), cursor))


_PROBLEMS: dict[InstanceProblem, tuple[int, str, str]] = {
    # status, code, message
    InstanceProblem.UNRESERVED_PARTITION: (400, "InvalidParameter", UNRESERVED),
    InstanceProblem.UNKNOWN_GROUP: (404, "NotAuthorizedOrNotFound", "{message}"),
    InstanceProblem.TOO_MANY_GROUPS: (400, "LimitExceeded", "{message}"),
    # Not IncorrectState: the SDKs would retry it for 90 s.
    InstanceProblem.GROUP_IN_USE: (409, "Conflict", "{message}"),
    InstanceProblem.BEHIND_LOG_START: (400, "InvalidParameter", CURSOR_BEHIND),
    InstanceProblem.INVALID_CURSOR: (400, "InvalidParameter", CURSOR_INVALID),
    InstanceProblem.UNAVAILABLE: (503, "ServiceUnavailable", "{message}"),
}


def of_instance_error(error: InstanceError, *, by_cursor: bool) -> OciError:
    """Return the response for a group error.

    A cursor (`by_cursor`) is invalid if it has outlived its group.
    """
    if by_cursor and error.kind is InstanceProblem.UNKNOWN_GROUP:
        return invalid(CURSOR_INVALID)
    status, code, text = _PROBLEMS[error.kind]
    partition = "" if error.partition is None else error.partition
    return OciError(status, text.format(message=error.message, partition=partition).rstrip(), code)
