"""What is kept of each resource, as JSON in documents, and its state, which follows from that and the time. Pure.

Times are milliseconds since the epoch. An id is the unique part of an OCID, so that another `oci.region` gives the same
resources other OCIDs.

CREATING, ACTIVE, UPDATING, ACTIVE, DELETING, DELETED (OCI Streaming API, `lifecycleState`). How long the states in
between last is `oci.lifecycle.delay.ms`. A record stays for 90 days after the deletion.
"""

from typing import Any, Literal

import msgspec

from headrace.oci.errors import OciError

State = Literal["CREATING", "UPDATING", "DELETING"]
DefinedTags = dict[str, dict[str, Any]]


class Phase(msgspec.Struct, frozen=True):
    """A change of a resource that takes time."""

    state: State
    until_ms: int
    """When it is over: the resource is then ACTIVE, or DELETED."""
    began_ms: int = 0


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all resources have."""

    id: str
    name: str
    compartment: str
    """Its OCID; empty for what is in every compartment: the shared default pool and the topics made in it."""
    created_ms: int
    phase: Phase | None = None
    """The latest change."""
    version: int = 1
    """Raised by every change that a client asks for; the etag tells it."""
    freeform_tags: dict[str, str] = {}
    defined_tags: DefinedTags = {}

    @property
    def etag(self) -> str:
        """Changes with the resource, and not with its lifecycle state."""
        return f"{self.id}-{self.version}"


class StreamRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A stream; its id is that of its topic, in hexadecimal."""

    pool: str
    partitions: int
    """As its topic has them; this is what is left to tell when the topic is gone, like the next."""
    retention_hours: int


class PoolRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A stream pool; its Kafka settings are those of its virtual cluster."""

    cluster: str
    default: bool = False
    """Whether it is the one in which a compartment's streams are made that name none; it cannot be deleted."""
    kms_key: str = ""
    subnet: str = ""
    private_ip: str = ""
    security_groups: tuple[str, ...] = ()
    security_attributes: DefinedTags = {}
    kafka_settings: dict[str, str] = {}
    """The cluster's settings at the end, kept because a deleted pool has no cluster."""


class HarnessRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A connect harness."""


class WorkRequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change that was asked for, and how far it is."""

    id: str
    operation: str
    """Such as `CREATE_STREAM`."""
    resources: tuple[tuple[str, str], ...]
    """(kind, id) of what it changes, the one it was asked for first."""
    compartment: str
    accepted_ms: int
    finished_ms: int


class RetryToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A creation that was asked for with `opc-retry-token`."""

    resource: str
    work_request: str
    request: str
    """A digest of the request's body."""
    expires_ms: int


STATES = ("CREATING", "ACTIVE", "UPDATING", "DELETING", "DELETED", "FAILED")
DAY_MS = 86_400_000
RECORD_LIFE_MS = 90 * DAY_MS
"""How long a deleted resource can still be asked for."""
WORK_REQUEST_LIFE_MS = 7 * DAY_MS
"""How long a work request can be asked for after its end; our choice, the service does not say."""
_ACCEPTED_SHARE = 10
"""A work request waits for a tenth of its time before it starts, so that every state is seen."""


def state_of(record: Record, now_ms: int) -> str:
    """The lifecycle state."""
    phase = record.phase
    if phase is None:
        return "ACTIVE"
    # A clock that was set back behind its beginning says nothing of it, and must not have it begin again.
    if phase.began_ms <= now_ms < phase.until_ms:
        return phase.state
    return "DELETED" if phase.state == "DELETING" else "ACTIVE"


def is_deleted(record: Record) -> bool:
    """Whether its deletion was asked for."""
    return record.phase is not None and record.phase.state == "DELETING"


def is_forgotten(record: Record, now_ms: int) -> bool:
    """Whether it was deleted so long ago that it is unknown."""
    phase = record.phase
    return phase is not None and is_deleted(record) and now_ms >= phase.until_ms + RECORD_LIFE_MS


def check_changeable(record: Record, now_ms: int, if_match: str | None) -> None:
    """Raise what stands against a change: OciError 412 for another etag, 409 while another change is under way."""
    if if_match is not None and if_match.strip('"') not in {record.etag, "*"}:
        raise OciError(412, f"The resource has changed: its etag is {record.etag}")
    state = state_of(record, now_ms)
    if state != "ACTIVE":
        raise OciError(409, f"The resource is {state}: it can be changed when it is ACTIVE", "IncorrectState")


def is_over(request: WorkRequestRecord, now_ms: int) -> bool:
    """Whether a work request ended so long ago that it is unknown."""
    return now_ms >= request.finished_ms + WORK_REQUEST_LIFE_MS


def started_ms(request: WorkRequestRecord) -> int:
    """When a work request starts."""
    return request.accepted_ms + (request.finished_ms - request.accepted_ms) // _ACCEPTED_SHARE


def status_of(request: WorkRequestRecord, now_ms: int) -> str:
    """A work request's status."""
    if _is_finished(request, now_ms):
        return "SUCCEEDED"
    return "IN_PROGRESS" if now_ms >= started_ms(request) else "ACCEPTED"


def percent_of(request: WorkRequestRecord, now_ms: int) -> float:
    """How much of a work request is done."""
    if _is_finished(request, now_ms):
        return 100.0
    return round(100 * (now_ms - request.accepted_ms) / (request.finished_ms - request.accepted_ms), 1)


def _is_finished(request: WorkRequestRecord, now_ms: int) -> bool:
    """Also when the clock was set back behind its beginning: what is over must not begin again."""
    return not request.accepted_ms <= now_ms < request.finished_ms
