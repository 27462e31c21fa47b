"""Faults and limits on purpose: what people test their retry code against, met by the SDK's own retries."""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.harness.clocks import StandingClock

import oci
from headrace.testing import InProcessServer, MovableClock
from headrace.testing.oci import GroupReader, OciClients, base64_of, put

models = oci.streaming.models
Client = Any


@pytest.fixture
def serving() -> Iterator[Callable[..., OciClients]]:
    """Starts a server with settings of the test's own; clients for it."""
    started: list[InProcessServer] = []

    def serving(clock: MovableClock | None = None, **settings: Any) -> OciClients:
        server = InProcessServer(clock=clock, **settings)
        started.append(server)
        server.start()
        return OciClients(server.http)

    yield serving
    for server in started:
        server.close()


def quick(attempts: int) -> Any:
    """The SDK's own retries, with waits of milliseconds for its seconds."""
    return oci.retry.RetryStrategyBuilder(
        max_attempts_check=True,
        max_attempts=attempts,
        service_error_check=True,
        service_error_retry_config={429: [], 409: ["IncorrectState"]},
        service_error_retry_on_any_5xx=True,
        retry_max_wait_between_calls_seconds=0.02,
        retry_base_sleep_time_seconds=0.01,
    ).get_retry_strategy()


def trim_horizon(client: Client, stream: Any) -> str:
    start = models.CreateCursorDetails(partition="0", type="TRIM_HORIZON")
    value: str = client.create_cursor(stream.id, start).data.value
    return value


def refused(call: Callable[..., object], *arguments: Any) -> tuple[int, str, str]:
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        call(*arguments)
    return caught.value.status, caught.value.code, caught.value.message


@pytest.mark.parametrize("fault", ["429", "500", "503"])
def test_the_sdk_tries_again(serving: Callable[..., OciClients], fault: str) -> None:
    clients = serving(oci_faults=f"GetMessages:{fault}*3")
    stream = clients.create_stream("s")
    put(clients.stream_client(), stream.id, "v")
    client = clients.stream_client(retry_strategy=quick(4))

    assert len(client.get_messages(stream.id, trim_horizon(client, stream)).data) == 1


def test_and_gives_up(serving: Callable[..., OciClients]) -> None:
    clients = serving(oci_faults="GetMessages:429*4")
    stream = clients.create_stream("s")
    client = clients.stream_client(retry_strategy=quick(4))
    start = trim_horizon(client, stream)

    assert refused(client.get_messages, stream.id, start)[:2] == (429, "TooManyRequests")
    assert client.get_messages(stream.id, start).data == []


def test_the_default_strategy_of_the_sdk(serving: Callable[..., OciClients]) -> None:
    """One fault: the SDK's default strategy sleeps a second or two for it."""
    clients = serving(oci_faults="GetMessages:500*1")
    stream = clients.create_stream("s")
    client = clients.stream_client(retry_strategy=oci.retry.DEFAULT_RETRY_STRATEGY)

    assert client.get_messages(stream.id, trim_horizon(client, stream)).data == []


def test_a_lost_answer_of_a_get_is_asked_again_and_nothing_is_missed(serving: Callable[..., OciClients]) -> None:
    clients = serving(oci_faults="GetMessages:lost*2")
    stream = clients.create_stream("s")
    put(clients.stream_client(), stream.id, *(str(number) for number in range(30)))
    client = clients.stream_client(
        retry_strategy=oci.retry.RetryStrategyBuilder(
            max_attempts_check=True,
            max_attempts=5,
            retry_base_sleep_time_seconds=0.01,
            retry_max_wait_between_calls_seconds=0.02,
        ).get_retry_strategy()
    )
    reader = GroupReader(client, stream.id, "g", "A")
    got = [value for _ in range(4) for value in reader.values(10)]

    assert got == [str(number) for number in range(30)]


def test_entries_that_are_throttled_hide_in_an_answer_of_200(serving: Callable[..., OciClients]) -> None:
    clients = serving(oci_faults="PutMessages:entries=2*1")
    stream = clients.create_stream("s")
    client = clients.stream_client()
    entries = [models.PutMessagesDetailsEntry(value=base64_of(str(number))) for number in range(5)]
    answer = client.put_messages(stream.id, models.PutMessagesDetails(messages=entries))

    assert (answer.status, answer.data.failures) == (200, 2)
    failed = [number for number, entry in enumerate(answer.data.entries) if entry.error]
    assert failed == [0, 1]
    assert {answer.data.entries[number].error for number in failed} == {"429"}
    assert "next request can be made in" in answer.data.entries[0].error_message
    assert answer.data.entries[0].offset is None
    again = client.put_messages(stream.id, models.PutMessagesDetails(messages=[entries[number] for number in failed]))
    assert again.data.failures == 0
    found = client.get_messages(stream.id, trim_horizon(client, stream)).data
    assert sorted(base64.b64decode(message.value) for message in found) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("expired", "The cursor is expired. Create a new one."),
        ("invalid", "The cursor is invalid. Create a new one."),
        ("behind", "The cursor is outside the retention period and is now invalid."),
        ("unreserved=0", "Trying to commit unreserved partition 0"),
    ],
)
def test_what_is_said_about_cursors_can_be_asked_for(
    serving: Callable[..., OciClients], fault: str, message: str
) -> None:
    clients = serving(oci_faults=f"GetMessages:{fault}*1")
    stream = clients.create_stream("s")
    client = clients.stream_client(retry_strategy=quick(4))
    start = trim_horizon(client, stream)

    assert refused(client.get_messages, stream.id, start) == (400, "InvalidParameter", message)
    assert client.get_messages(stream.id, start).data == []


def test_a_header_asks_for_one_request(client: Client, stream: Any) -> None:
    start = trim_horizon(client, stream)
    client.base_client.session.headers["x-headrace-fault"] = "GetMessages:429"
    assert refused(client.get_messages, stream.id, start)[0] == 429
    put(client, stream.id, "v")
    del client.base_client.session.headers["x-headrace-fault"]
    assert len(client.get_messages(stream.id, start).data) == 1


def test_strict_limits_of_reading(serving: Callable[..., OciClients]) -> None:
    clock = StandingClock()
    clients = serving(clock, oci_limits="strict")
    stream = clients.create_stream("s")
    client = clients.stream_client()
    start = trim_horizon(client, stream)
    for _ in range(5):
        assert client.get_messages(stream.id, start).status == 200

    def hurry() -> None:
        for _ in range(100):
            client.get_messages(stream.id, start)

    status, code, message = refused(hurry)
    assert (status, code) == (429, "TooManyRequests")
    assert message.startswith("Request was throttled because requests limit exhausted, next request can be made in ")
    clock.advance(seconds=1)
    assert client.get_messages(stream.id, start).status == 200


def test_strict_limits_of_writing(serving: Callable[..., OciClients]) -> None:
    clock = StandingClock()
    clients = serving(clock, oci_limits="strict")
    stream = clients.create_stream("s")
    client = clients.stream_client()
    for size in (900_000, 1_000_000):  # the last one may take more than there is
        put(client, stream.id, "x" * size)
    put_status, code, message = refused(put, client, stream.id, "x" * 1_000_000)
    assert (put_status, code) == (429, "TooManyRequests")
    assert message.startswith("Request was throttled because bytes limit exhausted, next request can be made in ")
    clock.advance(seconds=1.1)
    put(client, stream.id, "x" * 100_000)
