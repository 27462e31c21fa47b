"""What is kept of each resource, as it is stored: JSON in documents. Times are milliseconds since the epoch.

An id is the unique part of an OCID, so that another `oci.region` gives the same resources other OCIDs.
"""

from typing import Any, Literal

import msgspec

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
