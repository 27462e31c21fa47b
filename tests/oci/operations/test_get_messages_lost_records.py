"""A Redis that comes back with less than it had acknowledged: readers miss nothing of what comes in place of that."""

import base64
from collections.abc import Iterator

import pytest
from tests.harness.failover import Failover
from tests.harness.redis import RedisServer
from tests.harness.waiting import wait_for
from tests.oci.conftest import Api, details, new_stream

from headrace.testing import Server, server

NEW = [*range(100, 108)]


@pytest.fixture
def storage() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def started(storage: RedisServer) -> Iterator[Server]:
    with server(redis=storage.url, oci_auth="off") as running:
        yield running


@pytest.fixture
def api(started: Server) -> Iterator[Api]:
    made = Api(started.http)
    yield made
    made.close()


def put(api: Api, stream: str, *numbers: int) -> None:
    """Each in a batch of its own, as soon as the stream takes it."""
    for number in numbers:
        body = details((None, b"%d" % number))
        wait_for(lambda: api.call("POST", f"/streams/{stream}/messages", body).status == 200, "a put")  # noqa: B023


def read(api: Api, stream: str, cursor: str) -> tuple[list[int], str]:
    """Everything from a cursor on, and the next one."""
    found: list[int] = []
    while True:
        reply = api.get(stream, cursor)
        cursor = reply.next_cursor
        if not reply.json:
            return found, cursor
        found += [int(base64.b64decode(each["value"])) for each in reply.json]


def come_back_with_four_of_seven(api: Api, stream: str, storage: RedisServer, cursor: str) -> str:
    """The cursor at the end of the seven; then three of them are gone."""
    put(api, stream, *range(4))
    failover = Failover(storage)
    put(api, stream, 4, 5, 6)
    found, cursor = read(api, stream, cursor)
    assert found == [*range(7)]
    failover.happen()
    return cursor


@pytest.mark.parametrize("commit_on_get", [True, False])
def test_a_group_skips_nothing(api: Api, storage: RedisServer, commit_on_get: bool) -> None:
    stream, _ = new_stream(api)
    cursor = api.group_cursor(stream, "g", instanceName="a", commitOnGet=commit_on_get)
    cursor = come_back_with_four_of_seven(api, stream, storage, cursor)
    put(api, stream, *NEW)
    found, cursor = read(api, stream, cursor)
    assert found in (NEW, [*range(4), *NEW])
    assert api.consumer("commit", stream, cursor).status == 200
    assert api.done("GET", f"/streams/{stream}/groups/g")["reservations"][0]["committedOffset"] == 11


def test_a_group_that_asks_while_the_log_is_shorter_skips_nothing(api: Api, storage: RedisServer) -> None:
    stream, _ = new_stream(api)
    cursor = api.group_cursor(stream, "g", instanceName="a")
    cursor = come_back_with_four_of_seven(api, stream, storage, cursor)
    put(api, stream, NEW[0])
    found, cursor = read(api, stream, cursor)
    put(api, stream, *NEW[1:])
    more, _ = read(api, stream, cursor)
    assert [*found, *more] == NEW


def test_a_group_that_began_at_the_end_skips_nothing(api: Api, storage: RedisServer) -> None:
    """It has read nothing yet: only its start offset identifies the log."""
    stream, _ = new_stream(api)
    put(api, stream, *range(4))
    failover = Failover(storage)
    put(api, stream, 4, 5, 6)
    latest = api.group_cursor(stream, "latest", "LATEST", instanceName="a")
    updated = api.group_cursor(stream, "updated", instanceName="a")
    assert api.call("PUT", f"/streams/{stream}/groups/updated", {"type": "LATEST"}).status == 200
    failover.happen()
    put(api, stream, *NEW)
    assert read(api, stream, latest)[0] == NEW
    assert read(api, stream, updated)[0] == NEW


def test_a_single_reader_skips_nothing(api: Api, storage: RedisServer) -> None:
    stream, _ = new_stream(api)
    cursor = come_back_with_four_of_seven(api, stream, storage, api.cursor(stream))
    put(api, stream, *NEW)
    found, cursor = read(api, stream, cursor)
    assert found == NEW
    # The log is as it was since.
    put(api, stream, 200)
    assert read(api, stream, cursor)[0] == [200]
