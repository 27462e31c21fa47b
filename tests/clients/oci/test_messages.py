"""Messages and cursors with the SDK: put, got from every kind of cursor, refused in the service's words."""

import datetime as dt
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import pytest

import oci
from headrace.testing import MovableClock
from headrace.testing.oci import OciClients, base64_of, put, text_of

models = oci.streaming.models
Client = Any
UTC = dt.UTC


def cursor(client: Client, stream: Any, kind: str, partition: int = 0, **details: Any) -> str:
    asked = models.CreateCursorDetails(partition=str(partition), type=kind, **details)
    value: str = client.create_cursor(stream.id, asked).data.value
    return value


def drain(client: Client, stream: Any, start: str, limit: int = 3) -> list[Any]:
    """Everything from a cursor on, until nothing comes."""
    found: list[Any] = []
    while True:
        answer = client.get_messages(stream.id, start, limit=limit)
        if not answer.data:
            return found
        found += answer.data
        start = answer.headers["opc-next-cursor"]


def values(messages: list[Any]) -> list[str]:
    return [text_of(message.value) for message in messages]


def refused(call: Callable[..., object], *arguments: Any, **options: Any) -> tuple[int, str, str]:
    """Status, code and message of the error that a call ends with."""
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        call(*arguments, **options)
    return caught.value.status, caught.value.code, caught.value.message


def test_what_is_put_is_got(client: Client, stream: Any, headrace_clock: MovableClock) -> None:
    before = headrace_clock.now_ms()
    entries = put(client, stream.id, *(f"v{number}" for number in range(10)), key="a key")
    found = drain(client, stream, cursor(client, stream, "TRIM_HORIZON"))

    assert values(found) == [f"v{number}" for number in range(10)]
    assert {text_of(message.key) for message in found} == {"a key"}
    assert {(message.stream, message.partition) for message in found} == {(stream.name, "0")}
    assert [message.offset for message in found] == [entry.offset for entry in entries]
    assert [message.timestamp for message in found] == [entry.timestamp for entry in entries]
    assert all(entry.partition == "0" for entry in entries)
    assert before <= found[0].timestamp.timestamp() * 1000 <= headrace_clock.now_ms()


def test_a_key_that_is_not_given_stays_null(client: Client, stream: Any) -> None:
    put(client, stream.id, "without")
    (message,) = drain(client, stream, cursor(client, stream, "TRIM_HORIZON"))

    assert message.key is None


def test_any_bytes_may_be_key_and_value(client: Client, stream: Any) -> None:
    every = bytes(range(256))
    entry = models.PutMessagesDetailsEntry(key=b64encode(every).decode(), value=b64encode(every * 40).decode())
    client.put_messages(stream.id, models.PutMessagesDetails(messages=[entry]))
    (message,) = drain(client, stream, cursor(client, stream, "TRIM_HORIZON"))

    assert b64decode(message.key) == every
    assert b64decode(message.value) == every * 40


def test_messages_of_one_key_go_to_one_partition_and_others_are_spread(client: Client, wide: Any) -> None:
    same = {entry.partition for _ in range(5) for entry in put(client, wide.id, "v", "w", key="same")}
    spread = {entry.partition for entry in put(client, wide.id, *["v"] * 200)}

    assert len(same) == 1
    assert spread == {str(number) for number in range(8)}


@pytest.fixture
def ten(client: Client, stream: Any, headrace_clock: MovableClock) -> list[Any]:
    """Ten messages, a minute between them."""
    entries = []
    for number in range(10):
        entries += put(client, stream.id, f"v{number}")
        headrace_clock.advance(minutes=1)
    return entries


def test_cursors_by_offset(client: Client, stream: Any, ten: list[Any]) -> None:
    at = cursor(client, stream, "AT_OFFSET", offset=ten[4].offset)
    after = cursor(client, stream, "AFTER_OFFSET", offset=ten[4].offset)

    assert values(drain(client, stream, at)) == ["v4", "v5", "v6", "v7", "v8", "v9"]
    assert values(drain(client, stream, after)) == ["v5", "v6", "v7", "v8", "v9"]
    assert drain(client, stream, cursor(client, stream, "AFTER_OFFSET", offset=ten[9].offset)) == []
    status, code, _ = refused(cursor, client, stream, "AT_OFFSET", offset=ten[9].offset + 1)
    assert (status, code) == (400, "InvalidParameter")


def test_cursors_by_time(client: Client, stream: Any, ten: list[Any]) -> None:
    exactly = cursor(client, stream, "AT_TIME", time=ten[4].timestamp)
    between = cursor(client, stream, "AT_TIME", time=ten[4].timestamp + dt.timedelta(seconds=1))
    before_all = cursor(client, stream, "AT_TIME", time=ten[0].timestamp - dt.timedelta(days=3))

    assert values(drain(client, stream, exactly))[0] == "v4"
    assert values(drain(client, stream, between))[0] == "v5"
    assert len(drain(client, stream, before_all)) == 10


def test_a_naive_time_is_taken_as_utc(client: Client, stream: Any, ten: list[Any]) -> None:
    naive = ten[4].timestamp.astimezone(UTC).replace(tzinfo=None)

    assert values(drain(client, stream, cursor(client, stream, "AT_TIME", time=naive)))[0] == "v4"


def test_latest_is_what_is_put_after_the_cursor(client: Client, stream: Any, ten: list[Any]) -> None:
    latest = cursor(client, stream, "LATEST")
    put(client, stream.id, "new")

    assert len(ten) == 10
    assert values(drain(client, stream, latest)) == ["new"]


def test_two_readers_of_a_partition_get_the_same(client: Client, stream: Any, ten: list[Any]) -> None:
    one, other = (drain(client, stream, cursor(client, stream, "TRIM_HORIZON"), limit) for limit in (1, 7))

    assert [message.offset for message in one] == [message.offset for message in other]
    assert len(ten) == 10


def test_an_empty_partition_answers_with_the_next_cursor(client: Client, stream: Any) -> None:
    start = cursor(client, stream, "TRIM_HORIZON")
    for _ in range(3):
        answer = client.get_messages(stream.id, start)
        assert (answer.status, answer.data) == (200, [])
        start = answer.headers["opc-next-cursor"]
    put(client, stream.id, "at last")

    assert values(client.get_messages(stream.id, start).data) == ["at last"]


def test_without_a_limit_a_mebibyte_is_answered(client: Client, stream: Any) -> None:
    for _ in range(5):
        put(client, stream.id, *["x" * 50_000] * 10)
    found = client.get_messages(stream.id, cursor(client, stream, "TRIM_HORIZON")).data

    assert 19 <= len(found) <= 22
    assert len(drain(client, stream, cursor(client, stream, "TRIM_HORIZON"), 10_000)) == 50


def test_a_cursor_is_good_for_five_minutes_and_a_chain_of_them_for_hours(
    client: Client, stream: Any, headrace_clock: MovableClock
) -> None:
    put(client, stream.id, *(f"v{number}" for number in range(40)))
    first = chain = cursor(client, stream, "TRIM_HORIZON")
    found = []
    for _ in range(40):
        headrace_clock.advance(minutes=4)
        answer = client.get_messages(stream.id, chain, limit=1)
        found += values(answer.data)
        chain = answer.headers["opc-next-cursor"]

    assert found == [f"v{number}" for number in range(40)]
    expired = (400, "InvalidParameter", "The cursor is expired. Create a new one.")
    assert refused(client.get_messages, stream.id, first) == expired
    headrace_clock.advance(minutes=5, seconds=1)
    assert refused(client.get_messages, stream.id, chain) == expired


def test_limits_of_sizes(client: Client, stream: Any) -> None:
    def entry(key: str | None, value: str) -> Any:
        return models.PutMessagesDetailsEntry(key=None if key is None else base64_of(key), value=base64_of(value))

    def send(*entries: Any) -> Any:
        return client.put_messages(stream.id, models.PutMessagesDetails(messages=list(entries))).data

    assert send(entry(None, "x" * 1_048_576)).failures == 0
    assert send(entry("k" * 256, "x")).failures == 0
    assert refused(send, entry("k" * 257, "x"))[:2] == (400, "InvalidParameter")
    assert refused(send, entry("k", "x" * 1_048_576))[::2] == (400, "Request size is limited to 1 MiB")
    half = entry(None, "x" * 524_288)
    assert send(half, half).failures == 0
    assert refused(send, half, half, entry(None, "x"))[2] == "Request size is limited to 1 MiB"
    assert refused(send)[:2] == (400, "InvalidParameter")
    assert refused(send, entry("k", ""))[:2] == (400, "InvalidParameter")
    assert len(drain(client, stream, cursor(client, stream, "TRIM_HORIZON"), 10_000)) == 4


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_limits_of_a_get(client: Client, stream: Any, limit: int) -> None:
    start = cursor(client, stream, "TRIM_HORIZON")

    assert refused(client.get_messages, stream.id, start, limit=limit)[:2] == (400, "InvalidParameter")


def test_refused_in_the_words_of_the_service(client: Client, stream: Any, headrace_oci: OciClients) -> None:
    other = headrace_oci.create_stream("other")
    start = cursor(client, stream, "TRIM_HORIZON")
    invalid = (400, "InvalidParameter", "The cursor is invalid. Create a new one.")

    assert refused(client.get_messages, stream.id, "garbage") == invalid
    assert refused(client.get_messages, stream.id, start[:-3]) == invalid
    assert refused(client.get_messages, other.id, start) == invalid
    assert refused(client.consumer_commit, stream.id, start) == invalid
    unknown = stream.id[:-1] + ("0" if stream.id[-1] != "0" else "1")
    assert refused(client.get_messages, unknown, start) == (404, "NotAuthorizedOrNotFound", f"Unknown stream {unknown}")
    assert refused(cursor, client, stream, "TRIM_HORIZON", 7)[:2] == (400, "InvalidParameter")
    assert refused(cursor, client, stream, "AT_OFFSET")[0] == 400
    assert refused(cursor, client, stream, "AT_TIME")[0] == 400


def test_a_request_id_comes_back(client: Client, stream: Any) -> None:
    mine = uuid.uuid4().hex.upper()
    answer = client.get_messages(stream.id, cursor(client, stream, "LATEST"), opc_request_id=mine)

    assert answer.headers["opc-request-id"].split("/")[0] == mine
    assert answer.request_id


@pytest.mark.parametrize("suffix", ["", "/", "/20180418", "/20180418/"])
def test_endpoints_as_people_write_them(headrace_oci: OciClients, stream: Any, suffix: str) -> None:
    client = headrace_oci.stream_client(headrace_oci.endpoint + suffix)
    put(client, stream.id, "v")

    assert values(drain(client, stream, cursor(client, stream, "TRIM_HORIZON"))) == ["v"]
