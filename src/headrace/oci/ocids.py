"""OCIDs: `ocid1.<type>.<realm>.<region>.<unique>`. Pure.

A stream's unique part is its topic's id.

Source: Oracle Cloud Infrastructure, "Resource Identifiers".
"""

import re
from uuid import UUID

_OCID = re.compile(r"ocid1\.([a-z0-9]+)\.[a-z0-9]*\.[a-z0-9-]*(?:\.[a-z0-9-]*)?\.([A-Za-z0-9_-]+)")

STREAM = "stream"
STREAM_POOL = "streampool"
CONNECT_HARNESS = "connectharness"
WORK_REQUEST = "streamworkrequest"


def make(kind: str, region: str, unique: str) -> str:
    """Return the OCID of a resource."""
    return f"ocid1.{kind}.oc1.{region}.{unique}"


def unique_of(ocid: str, kind: str) -> str | None:
    """Return the unique part of an OCID of this kind, or None."""
    match = _OCID.fullmatch(ocid)
    return match[2] if match is not None and match[1] == kind else None


def stream(region: str, topic_id: UUID) -> str:
    """Return the OCID of a topic."""
    return make(STREAM, region, topic_id.hex)


def topic_of(stream_id: str) -> UUID | None:
    """Return the topic of a stream OCID, or None."""
    unique = unique_of(stream_id, STREAM)
    try:
        return UUID(hex=unique) if unique is not None and len(unique) == 32 else None
    except ValueError:
        return None
