"""The OCI API over three brokers, as with a load balancer: each request of Oracle's SDK goes to another one."""

import itertools
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import oci.streaming
import pytest
from oci.exceptions import RequestException, ServiceError
from oci.streaming.models import (
    CreateCursorDetails,
    CreateGroupCursorDetails,
    PutMessagesDetails,
    PutMessagesDetailsEntry,
    UpdateGroupDetails,
)
from tests.harness.brokers import Brokers, brokers
from tests.harness.waiting import wait_for
from tests.harness.wire import batch

from headrace.http.peers.transactions import ENDS, QUESTIONS
from headrace.testing.oci import OciClients

PARTITIONS = 6


@pytest.fixture(scope="module")
def three() -> Iterator[Brokers]:
    # Neighbors notice a killed broker at once; a busy machine must not cause the removal of a broker.
    with brokers(3, broker_session_timeout_ms=60_000, broker_heartbeat_interval_ms=200) as running:
        yield running


class Balanced:
    """A client whose every request goes to the next broker."""

    def __init__(self, over: Brokers) -> None:
        self.nodes = list(over.servers)
        """Those that requests go to; to be replaced, not changed."""
        self._clients = {
            node: OciClients(each.http).stream_client(retry_strategy=oci.retry.NoneRetryStrategy())
            for node, each in over.servers.items()
        }
        self._turn = itertools.count()

    def __getattr__(self, name: str) -> Any:
        nodes = self.nodes
        return getattr(self._clients[nodes[next(self._turn) % len(nodes)]], name)

    def put(self, stream: str, *messages: tuple[str | None, str]) -> list[Any]:
        entries = [
            PutMessagesDetailsEntry(key=None if key is None else encoded(key), value=encoded(value))
            for key, value in messages
        ]
        found = self.put_messages(stream, PutMessagesDetails(messages=entries)).data
        assert found.failures == 0, found
        entries_told: list[Any] = found.entries
        return entries_told

    def read(self, stream: str, cursor: str) -> tuple[list[Any], str]:
        answer = self.get_messages(stream, cursor)
        return answer.data, answer.headers["opc-next-cursor"]


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def values(messages: list[Any]) -> list[str]:
    return [b64decode(each.value).decode() for each in messages]


def reserved(client: Balanced, stream: str, group: str) -> list[Any]:
    reservations: list[Any] = client.get_group(stream, group).data.reservations
    return reservations


@pytest.fixture
def client(three: Brokers) -> Balanced:
    return Balanced(three)


@pytest.fixture
def stream(three: Brokers, client: Balanced) -> str:
    made = OciClients(three.servers[1].http).create_stream(f"stream-{uuid4().hex[:8]}", PARTITIONS)
    return str(made.id)


def test_messages_are_put_and_read_wherever_the_request_arrives(three: Brokers, client: Balanced, stream: str) -> None:
    sent = [(f"key-{number}", f"value-{number}") for number in range(60)]
    told = [client.put(stream, each)[0] for each in sent[:30]] + client.put(stream, *sent[30:])
    places = [(each.partition, each.offset) for each in told]
    assert len(set(places)) == len(sent)
    assert {int(partition) for partition, _ in places} == set(range(PARTITIONS))
    for partition in range(PARTITIONS):
        wanted = [value for (_, value), place in zip(sent, places, strict=True) if place[0] == str(partition)]
        # Three in a row: a leader, and who is none.
        for _ in range(3):
            details = CreateCursorDetails(partition=str(partition), type="TRIM_HORIZON")
            messages, following = client.read(stream, client.create_cursor(stream, details).data.value)
            assert values(messages) == wanted
            assert [each.offset for each in messages] == list(range(len(wanted)))
            assert client.read(stream, following)[0] == []
            details = CreateCursorDetails(partition=str(partition), type="AT_OFFSET", offset=len(wanted) - 1)
            assert values(client.read(stream, client.create_cursor(stream, details).data.value)[0]) == wanted[-1:]
            details = CreateCursorDetails(
                partition=str(partition), type="AT_TIME", time=datetime(2020, 1, 1, tzinfo=UTC)
            )
            assert values(client.read(stream, client.create_cursor(stream, details).data.value)[0]) == wanted
            details = CreateCursorDetails(partition=str(partition), type="AT_OFFSET", offset=len(wanted))
            with pytest.raises(ServiceError, match="is not between the oldest message, 0, and the latest"):
                client.create_cursor(stream, details)


def test_a_group_is_one_group_wherever_its_instances_ask(client: Balanced, stream: str) -> None:
    client.put(stream, *((f"key-{number}", f"value-{number}") for number in range(90)))
    group = f"group-{uuid4().hex[:8]}"
    cursors = []
    for instance in ("first", "second"):
        details = CreateGroupCursorDetails(
            group_name=group, instance_name=instance, type="TRIM_HORIZON", commit_on_get=False
        )
        cursors.append(client.create_group_cursor(stream, details).data.value)
    seen: list[str] = []
    both = {"first", "second"}
    while len(set(seen)) < 90 or {each.reserved_instance for each in reserved(client, stream, group)} != both:
        for place, cursor in enumerate(cursors):
            messages, following = client.read(stream, cursor)
            seen += values(messages)
            following = client.consumer_heartbeat(stream, following).data.value
            cursors[place] = client.consumer_commit(stream, following).data.value
    assert sorted(seen) == sorted(f"value-{number}" for number in range(90))
    for _ in range(3):
        assert sum(each.committed_offset + 1 for each in reserved(client, stream, group)) == 90
    client.update_group(stream, group, UpdateGroupDetails(type="TRIM_HORIZON"))
    again = [client.read(stream, cursor)[0] for cursor in cursors]
    assert sum(map(len, again)) > 0
    with pytest.raises(ServiceError) as error:
        client.get_group(stream, "no-such-group")
    assert (error.value.status, error.value.code) == (404, "NotAuthorizedOrNotFound")


def test_forged_requests_between_brokers_are_rejected(three: Brokers, client: Balanced, stream: str) -> None:
    """Requests between brokers need the keyspace's secret."""
    import http.client  # noqa: PLC0415

    place = three.servers[2].http.removeprefix("http://")
    forged = {"headrace-seal": f"{encoded('{}')}.{'0' * 64}"}
    for method, path, headers in (
        ("POST", "/headrace/append?cluster=default&topic=x&id=0&partition=0", {}),
        ("POST", "/headrace/append?cluster=default&topic=x&id=0&partition=0", forged),
        ("POST", ENDS, {}),
        ("POST", ENDS, forged),
        ("POST", QUESTIONS, forged),
        ("GET", f"/20180418/streams/{stream}/groups/g", forged),
    ):
        connection = http.client.HTTPConnection(place, timeout=60)
        connection.request(method, path, batch(b"x") if method == "POST" else None, headers)
        assert connection.getresponse().status == 401
        connection.close()


@pytest.mark.crash
def test_clients_of_a_broker_that_dies_go_on_at_the_others(three: Brokers, client: Balanced, stream: str) -> None:
    """What was acknowledged is there once, and a group reads all of it: its cursor outlives its coordinator."""
    acknowledged: list[tuple[str, str, int]] = []
    refused: list[Exception] = []
    stop = threading.Event()

    mine = Balanced(three)

    def write() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            value = f"value-{number}"
            try:
                (told,) = mine.put(stream, (f"key-{number}", value))
            except (RequestException, ServiceError) as error:
                refused.append(error)
            else:
                acknowledged.append((value, told.partition, told.offset))

    group = f"group-{uuid4().hex[:8]}"
    details = CreateGroupCursorDetails(group_name=group, instance_name="one", type="TRIM_HORIZON")
    cursor = client.create_group_cursor(stream, details).data.value
    owner = three.coordinator(1, group)
    writing = threading.Thread(target=write)
    writing.start()
    seen: set[str] = set()
    try:
        wait_for(lambda: len(acknowledged) > 50, "messages")
        # Before it dies: how many ask it afterwards would be how long this thread takes. One request may be on its way.
        left = [node for node in three.servers if node != owner]
        client.nodes = mine.nodes = left
        three.servers[owner].kill()
        before = len(acknowledged)
        wait_for(lambda: len(acknowledged) > before + 200, "messages put at the others")
        messages, cursor = client.read(stream, cursor)
        seen.update(values(messages))
        three.agree(left)
        three.start(owner)
        three.agree([1, 2, 3])
        client.nodes = mine.nodes = [1, 2, 3]
        before = len(acknowledged)
        wait_for(lambda: len(acknowledged) > before + 50, "messages put at all of them")
    finally:
        stop.set()
        writing.join()
    # Only whom the one that died was to answer has heard nothing, or was not let in any more.
    assert len(refused) <= 2, refused
    assert all(isinstance(each, RequestException) for each in refused), refused
    wanted = {value for value, _, _ in acknowledged}

    def all_seen() -> bool:
        nonlocal cursor
        messages, cursor = client.read(stream, cursor)
        seen.update(values(messages))
        return wanted <= seen

    wait_for(all_seen, "the group to have been given everything")
    for partition in range(PARTITIONS):
        at = CreateCursorDetails(partition=str(partition), type="TRIM_HORIZON")
        reading = client.create_cursor(stream, at).data.value
        found: list[str] = []
        while messages := (answer := client.read(stream, reading))[0]:
            reading = answer[1]
            found += values(messages)
        assert len(found) == len(set(found)), "a message was doubled"
        for value, where, offset in acknowledged:
            if where == str(partition):
                assert found[offset] == value
