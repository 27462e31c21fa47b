"""OCIDs: `ocid1.<type>.<realm>.<region>.<unique>`. Pure.

A stream's unique part is its topic's id, so every topic has one, however it was made.
"""

import re
from uuid import UUID

_OCID = re.compile(r"ocid1\.([a-z0-9]+)\.[a-z0-9]*\.[a-z0-9-]*(?:\.[a-z0-9-]*)?\.([A-Za-z0-9_-]+)")

STREAM = "stream"
STREAM_POOL = "streampool"
CONNECT_HARNESS = "connectharness"
WORK_REQUEST = "streamworkrequest"


def make(kind: str, region: str, unique: str) -> str:
    """The OCID of a resource."""
    return f"ocid1.{kind}.oc1.{region}.{unique}"


def unique_of(ocid: str, kind: str) -> str | None:
    """Return the unique part of an OCID of this kind, in any region, or None."""
    match = _OCID.fullmatch(ocid)
    return match[2] if match is not None and match[1] == kind else None


def stream(region: str, topic_id: UUID) -> str:
    """The OCID of a topic as a stream."""
    return make(STREAM, region, topic_id.hex)


def topic_of(stream_id: str) -> UUID | None:
    """Return the topic of a stream OCID, or None."""
    unique = unique_of(stream_id, STREAM)
    try:
        return UUID(hex=unique) if unique is not None and len(unique) == 32 else None
    except ValueError:
        return None
