"""OCI Streaming on native topics: messages are entries, a group is the Redis consumer group."""

from base64 import b64decode, b64encode
from typing import Any

from tests.harness.wire import Wire

import oci
from headrace.testing import Server
from headrace.testing.oci import OciClients, throw_away_config

from .conftest import Link, MakeMember


class Stream:
    """A native topic as OCI programs see it."""

    def __init__(self, running: Server, topic: str) -> None:
        clients = OciClients(running.http)
        listed = clients.admin_client().list_streams(compartment_id=throw_away_config()["tenancy"], name=topic)
        [found] = listed.data
        self.id = found.id
        self.client: Any = clients.stream_client()

    def put(self, *values: bytes) -> list[int]:
        entries = [
            oci.streaming.models.PutMessagesDetailsEntry(value=b64encode(value).decode(), key=b64encode(b"k").decode())
            for value in values
        ]
        put = self.client.put_messages(self.id, oci.streaming.models.PutMessagesDetails(messages=entries)).data
        assert put.failures == 0
        return [entry.offset for entry in put.entries]

    def cursor(self, group: str, instance: str = "one", start: str = "TRIM_HORIZON") -> str:
        details = oci.streaming.models.CreateGroupCursorDetails(
            group_name=group, instance_name=instance, type=start, commit_on_get=False
        )
        made: str = self.client.create_group_cursor(self.id, details).data.value
        return made

    def get(self, cursor: str, limit: int = 1_000) -> tuple[list[tuple[int, bytes]], str]:
        answer = self.client.get_messages(self.id, cursor, limit=limit)
        found = [(message.offset, b64decode(message.value)) for message in answer.data]
        return found, answer.headers["opc-next-cursor"]


def test_messages_are_entries(running: Server, topic: str, stream: str, link: Link) -> None:
    oci_stream = Stream(running, topic)
    offsets = oci_stream.put(b"one", b"two")
    assert [fields["value"] for _, fields in link.xrange(stream)] == ["one", "two"]
    link.xadd(stream, {"temperature": "21"})
    found, _ = oci_stream.get(oci_stream.cursor("readers"))
    assert found[:2] == list(zip(offsets, (b"one", b"two"), strict=True))
    assert [value for _, value in found] == [b"one", b"two", b"21"]


def test_a_commit_of_an_instance_moves_the_redis_group(
    running: Server, topic: str, stream: str, link: Link, wire: Wire, member: MakeMember
) -> None:
    oci_stream = Stream(running, topic)
    offsets = oci_stream.put(*[b"%d" % number for number in range(10)])
    found, cursor = oci_stream.get(oci_stream.cursor("shared"), limit=4)
    assert [offset for offset, _ in found] == offsets[:4]
    cursor = oci_stream.client.consumer_commit(oci_stream.id, cursor).data.value
    [group] = link.xinfo_groups(stream)
    assert (group["name"], group["pending"]) == ("shared", 0)
    assert wire.committed("shared", topic) == offsets[4]
    # A Redis program in the group goes on behind the commit.
    entries = link.xreadgroup("shared", "program", {stream: ">"}, count=2)[0][1]
    assert [fields["value"] for _, fields in entries] == ["4", "5"]
    found, cursor = oci_stream.get(cursor)
    assert [offset for offset, _ in found] == offsets[4:], "an instance reads on from its cursor"


def test_entries_of_anybody_come_soon(running: Server, topic: str, stream: str, link: Link) -> None:
    oci_stream = Stream(running, topic)
    cursor = oci_stream.cursor("waiting")
    seen: list[bytes] = []
    for number in range(20):
        link.xadd(stream, {"value": str(number)})
        for _ in range(100):
            found, cursor = oci_stream.get(cursor)
            seen += [value for _, value in found]
            if len(seen) > number:
                break
    assert seen == [b"%d" % number for number in range(20)]
