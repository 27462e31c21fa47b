"""Stored records of resources, and their lifecycle state as a function of time. Pure.

Times are milliseconds since the epoch. An id is the unique part of an OCID, so `oci.region` changes only OCIDs.
`oci.lifecycle.delay.ms` is the duration of transitional states.
"""

from typing import Any, Literal

import msgspec

from headrace.oci.errors import OciError

State = Literal["CREATING", "UPDATING", "DELETING"]
DefinedTags = dict[str, dict[str, Any]]


class Phase(msgspec.Struct, frozen=True):
    """A change that takes time."""

    state: State
    until_ms: int
    """Its end. The resource is then ACTIVE or DELETED."""
    began_ms: int = 0


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The common fields of all resources."""

    id: str
    name: str
    compartment: str
    """OCID; empty for the shared default pool and its topics."""
    created_ms: int
    phase: Phase | None = None
    """The latest change."""
    version: int = 1
    """Incremented by every change of a client; part of the etag."""
    freeform_tags: dict[str, str] = {}
    defined_tags: DefinedTags = {}

    @property
    def etag(self) -> str:
        """The etag, which does not depend on the lifecycle state."""
        return f"{self.id}-{self.version}"


class StreamRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A stream. Its id is that of its topic in hexadecimal."""

    pool: str
    partitions: int
    """Partitions of the topic. Kept, as the next field, for deleted topics."""
    retention_hours: int


class PoolRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A stream pool."""

    cluster: str
    default: bool = False
    """Whether it is its compartment's default pool, which cannot be deleted."""
    kms_key: str = ""
    subnet: str = ""
    private_ip: str = ""
    security_groups: tuple[str, ...] = ()
    security_attributes: DefinedTags = {}
    kafka_settings: dict[str, str] = {}
    """The cluster's last settings, because a deleted pool has no cluster."""


class HarnessRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A connect harness."""


class WorkRequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A requested change and its progress."""

    id: str
    operation: str
    """Such as `CREATE_STREAM`."""
    resources: tuple[tuple[str, str], ...]
    """(kind, id) of the changed resources, the requested one first."""
    compartment: str
    accepted_ms: int
    finished_ms: int


class RetryToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A creation with `opc-retry-token`."""

    resource: str
    work_request: str
    request: str
    """Digest of the request's body."""
    expires_ms: int


STATES = ("CREATING", "ACTIVE", "UPDATING", "DELETING", "DELETED", "FAILED")
DAY_MS = 86_400_000
RECORD_LIFE_MS = 90 * DAY_MS
"""Time for which a deleted resource is kept."""
WORK_REQUEST_LIFE_MS = 7 * DAY_MS
"""Time for which a finished work request is kept. Not documented by the service."""
_ACCEPTED_SHARE = 10
"""A work request starts after a tenth of its time, so that clients see every state."""


def state_of(record: Record, now_ms: int) -> str:
    """Return the lifecycle state."""
    phase = record.phase
    if phase is None:
        return "ACTIVE"
    # A clock set back to before the start must not restart the change.
    if phase.began_ms <= now_ms < phase.until_ms:
        return phase.state
    return "DELETED" if phase.state == "DELETING" else "ACTIVE"


def is_deleted(record: Record) -> bool:
    """Return whether its deletion was requested."""
    return record.phase is not None and record.phase.state == "DELETING"


def is_forgotten(record: Record, now_ms: int) -> bool:
    """Return whether its deletion is too old to be known."""
    phase = record.phase
    return phase is not None and is_deleted(record) and now_ms >= phase.until_ms + RECORD_LIFE_MS


def check_changeable(record: Record, now_ms: int, if_match: str | None) -> None:
    """Raise OciError 412 for another etag, 409 while another change is in progress."""
    if if_match is not None and if_match.strip('"') not in {record.etag, "*"}:
        raise OciError(412, f"The resource has changed: its etag is {record.etag}")
    state = state_of(record, now_ms)
    if state != "ACTIVE":
        raise OciError(409, f"The resource is {state}: it can be changed when it is ACTIVE", "IncorrectState")


def is_over(request: WorkRequestRecord, now_ms: int) -> bool:
    """Return whether it is too old to be known."""
    return now_ms >= request.finished_ms + WORK_REQUEST_LIFE_MS


def started_ms(request: WorkRequestRecord) -> int:
    """Return the start time."""
    return request.accepted_ms + (request.finished_ms - request.accepted_ms) // _ACCEPTED_SHARE


def status_of(request: WorkRequestRecord, now_ms: int) -> str:
    """Return the status."""
    if _is_finished(request, now_ms):
        return "SUCCEEDED"
    return "IN_PROGRESS" if now_ms >= started_ms(request) else "ACCEPTED"


def percent_of(request: WorkRequestRecord, now_ms: int) -> float:
    """Return the progress."""
    if _is_finished(request, now_ms):
        return 100.0
    return round(100 * (now_ms - request.accepted_ms) / (request.finished_ms - request.accepted_ms), 1)


def _is_finished(request: WorkRequestRecord, now_ms: int) -> bool:
    return not request.accepted_ms <= now_ms < request.finished_ms
