"""Remove all topics, groups and schemas of a server between tests."""

import json
from contextlib import closing
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from headrace.client.channel import Channel, connect
from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    MetadataRequest,
)

_TIMEOUT_MS = 20_000
_PATIENCE_S = 30
_ATTEMPTS = 20


def sweep(kafka: str) -> None:
    """Remove all topics, then all groups and their members. Raises AssertionError."""
    host, port = kafka.rsplit(":", 1)
    with closing(Channel(connect(host, int(port), _PATIENCE_S), "sweeping")) as connection:
        _remove_topics(connection)
        _remove_groups(connection)


def _remove_topics(connection: Channel) -> None:
    topics = [topic.name for topic in connection.ask(MetadataRequest(topics=None), 9).topics if not topic.is_internal]
    if not topics:
        return
    asked = [DeleteTopicsRequest.DeleteTopicState(name=topic) for topic in topics]
    answer = connection.ask(DeleteTopicsRequest(topics=asked, timeout_ms=_TIMEOUT_MS), 6)
    gone = {Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert all(one.error_code in gone for one in answer.responses), answer


def _remove_groups(connection: Channel) -> None:
    # Its group responds with COORDINATOR_NOT_AVAILABLE while a topic is being removed.
    for _ in range(_ATTEMPTS):
        groups = [group.group_id for group in connection.ask(ListGroupsRequest(), 4).groups]
        if not groups:
            return
        for group in connection.ask(DescribeGroupsRequest(groups=groups), 5).groups:
            _remove_members(connection, group)
        answer = connection.ask(DeleteGroupsRequest(groups_names=groups), 2)
    raise AssertionError(f"groups that cannot be removed: {answer}")


def _remove_members(connection: Channel, group: DescribeGroupsResponse.DescribedGroup) -> None:
    members = [
        LeaveGroupRequest.MemberIdentity(member_id=member.member_id, group_instance_id=member.group_instance_id)
        for member in group.members
    ]
    if members:
        connection.ask(LeaveGroupRequest(group_id=group.group_id, members=members), 4)


def sweep_schemas(registry: str) -> None:
    """Remove all subjects and settings of a schema registry.

    Args:
        registry: its URL.

    Raises:
        AssertionError: the registry refuses a removal.
    """
    for path in ("/mode", "/config"):
        _ask(f"{registry}{path}", "DELETE")
    for permanent in ("false", "true"):
        query = "?deletedOnly=true" if permanent == "true" else ""
        # A subject that others refer to can be removed after them.
        while left := json.loads(_ask(f"{registry}/subjects{query}") or b"[]"):
            removed = [
                name
                for name in left
                if _ask(f"{registry}/subjects/{quote(name, safe='')}?permanent={permanent}", "DELETE") is not None
            ]
            assert removed, f"subjects that cannot be removed: {left}"


def _ask(url: str, method: str = "GET") -> bytes | None:
    """Return the answer, or None for a refusal."""
    try:
        with urlopen(Request(url, method=method), timeout=_PATIENCE_S) as answer:
            return bytes(answer.read())
    except HTTPError as error:
        error.close()
        return None
