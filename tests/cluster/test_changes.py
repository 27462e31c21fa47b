"""Changes through OCI's API, asked of three brokers at once: none is lost, and nothing is taken twice."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any
from uuid import uuid4

import pytest
from oci.exceptions import ServiceError
from oci.streaming import StreamAdminClient
from oci.streaming.models import (
    CreateCursorDetails,
    CreateStreamDetails,
    CreateStreamPoolDetails,
    KafkaSettings,
    PutMessagesDetails,
    PutMessagesDetailsEntry,
    UpdateStreamDetails,
    UpdateStreamPoolDetails,
)
from tests.harness.brokers import Brokers, brokers
from tests.harness.waiting import wait_for

from headrace.testing.oci import OciClients

ROUNDS = pytest.mark.parametrize("number", range(3))
Asked = Callable[[StreamAdminClient], Any]


@pytest.fixture(scope="module")
def three() -> Iterator[Brokers]:
    with brokers(3, broker_session_timeout_ms=60_000, broker_heartbeat_interval_ms=200) as running:
        yield running


@pytest.fixture(scope="module")
def compartment() -> str:
    return f"ocid1.compartment.oc1..{uuid4().hex}"


@pytest.fixture(scope="module")
def admins(three: Brokers, compartment: str) -> list[StreamAdminClient]:
    return [OciClients(each.http, compartment).admin for each in three.servers.values()]


def at_once(admins: Sequence[StreamAdminClient], *asked: Asked) -> list[Any]:
    """Each of these asked of another broker, all together; the answer's data, or the error's status."""
    begin = Barrier(len(asked))

    def ask(admin: StreamAdminClient, what: Asked) -> Any:
        begin.wait()
        try:
            return what(admin).data
        except ServiceError as error:
            return error.status

    with ThreadPoolExecutor(len(asked)) as threads:
        return list(threads.map(ask, admins, asked))


def refusals(told: Sequence[Any]) -> list[int]:
    """The statuses of those that were refused."""
    return [each for each in told if isinstance(each, int)]


def pool(admin: StreamAdminClient, compartment: str) -> Any:
    return admin.create_stream_pool(CreateStreamPoolDetails(name=uuid4().hex, compartment_id=compartment)).data


def known(admins: Sequence[StreamAdminClient], pool_id: str, *, is_gone: bool = False) -> None:
    """Wait until all brokers have heard of a pool, or of its end."""

    def hears(admin: StreamAdminClient) -> bool:
        try:
            return (admin.get_stream_pool(pool_id).data.lifecycle_state == "DELETED") is is_gone
        except ServiceError as error:
            if error.status != 404:
                raise
            return False

    wait_for(lambda: all(map(hears, admins)), "the pool at all brokers")


@ROUNDS
def test_fields_of_one_pool(admins: list[StreamAdminClient], compartment: str, number: int) -> None:
    made = pool(admins[0], compartment)
    known(admins, made.id)
    changes = (
        UpdateStreamPoolDetails(name=f"new-{made.name}"),
        UpdateStreamPoolDetails(freeform_tags={"a": "b"}),
        UpdateStreamPoolDetails(kafka_settings=KafkaSettings(num_partitions=7)),
    )
    told = at_once(admins, *(lambda admin, each=each: admin.update_stream_pool(made.id, each) for each in changes))
    assert refusals(told) == []
    known(admins, made.id)
    for admin in admins:

        def has_all(admin: StreamAdminClient = admin) -> bool:
            now = admin.get_stream_pool(made.id).data
            settings = now.kafka_settings.num_partitions
            return (now.name, now.freeform_tags, settings) == (f"new-{made.name}", {"a": "b"}, 7)

        wait_for(has_all, "all three changes")


@ROUNDS
def test_an_etag_is_good_for_one_change(admins: list[StreamAdminClient], compartment: str, number: int) -> None:
    etag = (made := admins[0].get_stream_pool(pool(admins[0], compartment).id)).headers["etag"]
    known(admins, made.data.id)
    changes = [UpdateStreamPoolDetails(freeform_tags={"by": str(number)}) for number in range(3)]
    told = at_once(
        admins,
        *(lambda admin, each=each: admin.update_stream_pool(made.data.id, each, if_match=etag) for each in changes),
    )
    assert refusals(told) == [412, 412]


@ROUNDS
def test_a_name_is_taken_once(admins: list[StreamAdminClient], compartment: str, number: int) -> None:
    asked = CreateStreamPoolDetails(name=uuid4().hex, compartment_id=compartment)
    told = at_once(admins, *[lambda admin: admin.create_stream_pool(asked)] * 3)
    assert refusals(told) == [409, 409]


@ROUNDS
def test_a_retry_token_makes_one_pool(admins: list[StreamAdminClient], compartment: str, number: int) -> None:
    asked = CreateStreamPoolDetails(name=uuid4().hex, compartment_id=compartment)
    token = uuid4().hex
    told = at_once(admins, *[lambda admin, token=token: admin.create_stream_pool(asked, opc_retry_token=token)] * 3)
    assert refusals(told) == []
    assert len({each.id for each in told}) == 1


@ROUNDS
def test_no_stream_is_left_in_a_pool_that_is_deleted(
    admins: list[StreamAdminClient], compartment: str, number: int
) -> None:
    made = pool(admins[0], compartment)
    known(admins, made.id)
    names = [f"s-{uuid4().hex[:8]}" for _ in range(2)]

    def stream(admin: StreamAdminClient, name: str) -> Any:
        return admin.create_stream(CreateStreamDetails(name=name, partitions=1, stream_pool_id=made.id))

    told = at_once(
        admins,
        lambda admin: admin.delete_stream_pool(made.id),
        *(lambda admin, name=name: stream(admin, name) for name in names),
    )
    assert set(refusals(told)) <= {404, 409}
    known(admins, made.id, is_gone=True)
    streams = [each.id for each in told[1:] if not isinstance(each, int)]

    def are_gone(admin: StreamAdminClient) -> bool:
        return all(admin.get_stream(each).data.lifecycle_state == "DELETED" for each in streams)

    wait_for(lambda: all(map(are_gone, admins)), "the streams are gone with their pool")


@ROUNDS
def test_fields_of_one_stream(admins: list[StreamAdminClient], three: Brokers, compartment: str, number: int) -> None:
    made = OciClients(three.servers[1].http, compartment).create_stream(f"s-{uuid4().hex[:8]}")

    def there(admin: StreamAdminClient) -> bool:
        try:
            return bool(admin.get_stream(made.id).data.id)
        except ServiceError:
            return False

    wait_for(lambda: all(map(there, admins)), "the stream at all brokers")
    target = pool(admins[0], compartment)
    known(admins, target.id)
    changes = (
        UpdateStreamDetails(freeform_tags={"a": "b"}),
        UpdateStreamDetails(defined_tags={"n": {"a": "b"}}),
        UpdateStreamDetails(stream_pool_id=target.id),
    )
    told = at_once(admins, *(lambda admin, each=each: admin.update_stream(made.id, each) for each in changes))
    assert refusals(told) == []

    def has_all(admin: StreamAdminClient) -> bool:
        now = admin.get_stream(made.id).data
        found = (now.freeform_tags, now.defined_tags, now.stream_pool_id)
        return found == ({"a": "b"}, {"n": {"a": "b"}}, target.id)

    wait_for(lambda: all(map(has_all, admins)), "all three changes")


@ROUNDS
def test_a_stream_that_moves_gets_each_message_once(
    admins: list[StreamAdminClient], three: Brokers, compartment: str, number: int
) -> None:
    pools = [pool(admins[0], compartment).id for _ in range(2)]
    for each in pools:
        known(admins, each)
    asked = CreateStreamDetails(name=f"s-{uuid4().hex[:8]}", partitions=6, stream_pool_id=pools[0])
    made = admins[0].create_stream(asked).data
    clients = [OciClients(each.http).stream_client() for each in three.servers.values()]
    begin, moved = Barrier(7), Event()

    def write(writer: int) -> list[str]:
        begin.wait()
        sent: list[str] = []
        more = 50
        while more:
            # Some go on for as long as the last broker needs to hear of the move.
            more -= moved.is_set()
            value = b64encode(f"{writer}-{len(sent)}".encode()).decode()
            entry = PutMessagesDetailsEntry(key=b64encode(b"%d" % writer).decode(), value=value)
            details = PutMessagesDetails(messages=[entry])
            told = clients[len(sent) % 3].put_messages(made.id, details).data
            assert not told.failures, told
            sent.append(value)
        return sent

    with ThreadPoolExecutor(6) as threads:
        writing = [threads.submit(write, writer) for writer in range(6)]
        begin.wait()
        try:
            for place in (1, 0, 1):
                admins[place].update_stream(made.id, UpdateStreamDetails(stream_pool_id=pools[place]))
        finally:
            moved.set()
        sent = [value for each in writing for value in each.result()]
    found: list[str] = []
    for partition in range(6):
        start = CreateCursorDetails(partition=str(partition), type="TRIM_HORIZON")
        cursor = clients[0].create_cursor(made.id, start).data.value
        while (answer := clients[0].get_messages(made.id, cursor)).data:
            found += [each.value for each in answer.data]
            cursor = answer.headers["opc-next-cursor"]
    assert sorted(found) == sorted(sent)
