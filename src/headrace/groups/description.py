"""A group as tools see it (DescribeGroups, the command line, the console)."""

import msgspec

from headrace.groups.states import GroupState


class MemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member; metadata and assignment are empty until a protocol is chosen and assignments are made."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A group; `protocol` and `protocol_type` are empty strings where there is none, as in Kafka."""

    name: str
    state: GroupState
    generation: int
    protocol_type: str
    protocol: str
    leader: str | None
    members: tuple[MemberDescription, ...]
