"""The flow of Oracle's own streaming example for Python, rewritten: its assumptions must hold.

It creates the stream if it does not exist, waits for it, publishes, reads with a single cursor, then with two instances
of a group. Its group loop ends at the first empty response, so the first get must return messages.
"""

from base64 import b64decode
from typing import Any

import pytest

import oci
from headrace.testing import InProcessServer, MovableClock
from headrace.testing.oci import OciClients, base64_of

models = oci.streaming.models
NAME = "SdkExampleStream"


def get_or_create(clients: OciClients, waits_for: str) -> Any:
    admin = clients.admin_client()
    composite = oci.streaming.StreamAdminClientCompositeOperations(admin)
    listed = admin.list_streams(compartment_id=clients.compartment_id, name=NAME, lifecycle_state="ACTIVE")
    if listed.data:
        return admin.get_stream(listed.data[0].id).data
    details = models.CreateStreamDetails(name=NAME, partitions=1, compartment_id=clients.compartment_id)
    waiting = {"max_interval_seconds": 0.05, "max_wait_seconds": 20}
    made = composite.create_stream_and_wait_for_state(details, [waits_for], waiter_kwargs=waiting).data
    return made if waits_for == "ACTIVE" else admin.get_stream(made.resources[0].identifier).data


def publish(client: Any, stream_id: str) -> None:
    messages = [
        models.PutMessagesDetailsEntry(key=base64_of(f"key{number}"), value=base64_of(f"value{number}"))
        for number in range(1, 101)
    ]
    result = client.put_messages(stream_id, models.PutMessagesDetails(messages=messages)).data
    assert all(not entry.error for entry in result.entries)


def read_with_a_cursor(client: Any, stream_id: str) -> list[str]:
    details = models.CreateCursorDetails(partition="0", type="TRIM_HORIZON")
    cursor = client.create_cursor(stream_id, details).data.value
    found: list[str] = []
    while True:
        answer = client.get_messages(stream_id, cursor, limit=10)
        if not answer.data:
            return found
        found += [b64decode(message.value).decode() for message in answer.data]
        cursor = answer.headers["opc-next-cursor"]


def read_in_a_group(client: Any, stream_id: str, group: str, instance: str) -> list[str]:
    details = models.CreateGroupCursorDetails(
        group_name=group, instance_name=instance, type="TRIM_HORIZON", commit_on_get=True
    )
    cursor = client.create_group_cursor(stream_id, details).data.value
    found = []
    for _ in range(6):
        answer = client.get_messages(stream_id, cursor, limit=10)
        if not answer.data:
            break
        found += [b64decode(message.value).decode() for message in answer.data]
        cursor = answer.headers["opc-next-cursor"]
    return found


@pytest.mark.parametrize("waits_for", ["SUCCEEDED", "ACTIVE"])
def test_the_course_of_the_example(waits_for: str) -> None:
    """As it is with SDKs since 2.175, whose waiters look at work requests; and as the example still has it."""
    clock = MovableClock()
    with InProcessServer(clock=clock, oci_work_requests=waits_for == "SUCCEEDED") as started:
        clients = OciClients(started.http)
        stream = get_or_create(clients, waits_for)
        assert get_or_create(clients, waits_for).id == stream.id
        client = oci.streaming.StreamClient(clients.config, stream.messages_endpoint)
        publish(client, stream.id)
        every = [f"value{number}" for number in range(1, 101)]
        assert read_with_a_cursor(client, stream.id) == every

        first = read_in_a_group(client, stream.id, "group", "instance-1")
        assert first == every[:60]
        # The last ten were not committed; who comes after the first's time has passed begins with them.
        clock.advance(seconds=31)
        assert read_in_a_group(client, stream.id, "group", "instance-2") == every[50:]

        clients.admin_client().delete_stream(stream.id)
        assert clients.admin_client().get_stream(stream.id).data.lifecycle_state == "DELETED"
