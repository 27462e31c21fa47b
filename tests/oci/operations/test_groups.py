"""The group operations on a real server, looked at on the wire; what groups do is tested in tests/groups."""

import asyncio
import base64
import json
import re
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oci.conftest import Api, Reply, new_stream

from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.oci.api.registry import Call
from headrace.oci.errors import CURSOR_INVALID
from headrace.oci.operations.groups import get_group
from headrace.testing import InProcessServer


def fill(api: Api, stream: str, count: int, first: int = 0) -> None:
    api.put(stream, *[(b"%d" % number, b"%d" % number) for number in range(first, first + count)])


def values(reply: Reply) -> list[int]:
    assert reply.status == 200, reply
    return [int(base64.b64decode(message["value"])) for message in reply.json]


def test_a_group_is_shown_as_the_service_shows_it(api: Api, wide: str) -> None:
    fill(api, wide, 40)
    cursor = api.group_cursor(wide, "shown", instanceName="a")
    assert api.done("GET", f"/streams/{wide}/groups/shown")["reservations"] == [
        {"partition": str(partition), "committedOffset": -1} for partition in range(4)
    ]
    first = api.get(wide, cursor)
    ends = {message["partition"]: message["offset"] for message in first.json}
    following = api.consumer("commit", wide, first.next_cursor)
    assert following.json.keys() == {"value"}
    group = api.done("GET", f"/streams/{wide}/groups/shown")
    assert group.keys() == {"streamId", "groupName", "reservations"}
    assert (group["streamId"], group["groupName"]) == (wide, "shown")
    for partition, reservation in enumerate(group["reservations"]):
        assert reservation.keys() == {"partition", "committedOffset", "reservedInstance", "timeReservedUntil"}
        assert reservation["partition"] == str(partition)
        assert reservation["committedOffset"] == ends[str(partition)]
        assert reservation["reservedInstance"] == "a"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", reservation["timeReservedUntil"])
        datetime.fromisoformat(reservation["timeReservedUntil"])


def test_committed_offset_may_be_the_next_one() -> None:
    with InProcessServer(oci_auth="off", oci_committed_offset="next") as server:
        api = Api(server.http)
        stream, _ = new_stream(api)
        fill(api, stream, 5)
        reply = api.get(stream, api.group_cursor(stream, "g", instanceName="a"))
        assert api.done("GET", f"/streams/{stream}/groups/g")["reservations"][0]["committedOffset"] == -1
        api.consumer("commit", stream, reply.next_cursor)
        assert api.done("GET", f"/streams/{stream}/groups/g")["reservations"][0]["committedOffset"] == 5
        api.close()


def test_update_group_has_no_body_and_moves_the_group(api: Api, stream: str) -> None:
    fill(api, stream, 10)
    cursor = api.get(stream, api.group_cursor(stream, "moved", instanceName="a"), 6).next_cursor
    reply = api.call("PUT", f"/streams/{stream}/groups/moved", {"type": "TRIM_HORIZON"})
    assert (reply.status, reply.body) == (200, b"")
    assert "content-type" not in reply.headers
    assert values(api.get(stream, cursor)) == list(range(10))


@pytest.mark.parametrize("name", ["a b/c", "ü" * 127, "\N{GRINNING FACE}", "a//b/", "/", "%2F", "..", "a?b#c", "\x01"])
def test_names_of_groups_and_instances(api: Api, stream: str, name: str) -> None:
    from urllib.parse import quote  # noqa: PLC0415

    cursor = api.group_cursor(stream, name, instanceName=name)
    assert len(cursor) <= 1024
    api.get(stream, cursor)
    for sent in (quote(name, safe=""), quote(name, safe="/")):
        group = api.done("GET", f"/streams/{stream}/groups/{sent}")
        assert (group["groupName"], group["reservations"][0]["reservedInstance"]) == (name, name)


@pytest.mark.parametrize(
    ("details", "code", "place"),
    [
        ({"groupName": "", "type": "LATEST"}, "InvalidParameter", "groupName"),
        ({"groupName": "ü" * 128, "type": "LATEST"}, "InvalidParameter", "groupName"),
        ({"type": "LATEST"}, "MissingParameter", "groupName"),
        ({"groupName": "g"}, "MissingParameter", "type"),
        ({"groupName": "g", "type": "AT_OFFSET"}, "InvalidParameter", "type"),
        ({"groupName": "g", "type": "AT_TIME"}, "MissingParameter", "time"),
        ({"groupName": "g", "type": "AT_TIME", "time": "noon"}, "InvalidParameter", "time"),
        ({"groupName": "g", "type": "LATEST", "instanceName": ""}, "InvalidParameter", "instanceName"),
        ({"groupName": "g", "type": "LATEST", "instanceName": "i" * 256}, "InvalidParameter", "instanceName"),
        ({"groupName": "g", "type": "LATEST", "timeoutInMs": 0}, "InvalidParameter", "timeoutInMs"),
        ({"groupName": "g", "type": "LATEST", "timeoutInMs": 2**31}, "InvalidParameter", "timeoutInMs"),
        ({"groupName": "g", "type": "LATEST", "commitOnGet": "yes"}, "InvalidParameter", "commitOnGet"),
    ],
)
def test_group_cursors_that_are_refused(
    api: Api, stream: str, details: dict[str, object], code: str, place: str
) -> None:
    status, told, message = api.call("POST", f"/streams/{stream}/groupCursors", details).error
    assert (status, told) == (400, code)
    assert place in message


@pytest.mark.parametrize("details", [{}, {"type": "AT_OFFSET"}, {"type": "AT_TIME"}, [], {"type": None}])
def test_updates_that_are_refused(api: Api, stream: str, details: object) -> None:
    api.group_cursor(stream, "g")
    assert api.call("PUT", f"/streams/{stream}/groups/g", details).error[0] == 400


def test_an_unknown_group_and_one_that_is_gone(api: Api, stream: str) -> None:
    for method, body in (("GET", None), ("PUT", {"type": "LATEST"})):
        assert api.call(method, f"/streams/{stream}/groups/nobody", body).error[:2] == (404, "NotAuthorizedOrNotFound")
        assert api.call(method, f"/streams/{stream}/groups/{'x' * 256}", body).error[0] == 400


def test_nulls_are_what_is_not_given(api: Api, stream: str) -> None:
    cursor = api.group_cursor(stream, "nulls", instanceName=None, timeoutInMs=None, commitOnGet=None, time=None)
    assert api.get(stream, cursor).status == 200
    [reservation] = api.done("GET", f"/streams/{stream}/groups/nulls")["reservations"]
    UUID(reservation["reservedInstance"])


def test_groups_reservations_and_cursors_survive_a_restart() -> None:
    with InProcessServer(oci_auth="off") as server:
        api = Api(server.http)
        stream, _ = new_stream(api, 2)
        fill(api, stream, 50)
        first = api.get(stream, api.group_cursor(stream, "g", instanceName="a"), 20)
        got = values(first)
        before = api.done("GET", f"/streams/{stream}/groups/g")
        api.close()
        server.restart()

        api = Api(server.http)
        after = api.done("GET", f"/streams/{stream}/groups/g")
        assert [each["reservedInstance"] for each in after["reservations"]] == ["a", "a"]
        assert [each["committedOffset"] for each in after["reservations"]] == [
            each["committedOffset"] for each in before["reservations"]
        ]
        cursor = first.next_cursor
        while len(got) < 50:
            reply = api.get(stream, cursor)
            assert values(reply)
            got += values(reply)
            cursor = reply.next_cursor
        assert sorted(got) == list(range(50))
        api.close()


def test_cursors_stay_short_with_many_partitions(api: Api) -> None:
    stream, _ = new_stream(api, 64)
    name = "\N{GRINNING FACE}" * 63
    fill(api, stream, 2_000)
    cursor = api.group_cursor(stream, name, instanceName=name, commitOnGet=True)
    got: list[int] = []
    for _ in range(100):
        reply = api.get(stream, cursor)
        cursor = reply.next_cursor
        assert len(cursor) <= 1024
        if not reply.json:
            break
        got += values(reply)
    assert sorted(got) == list(range(2_000))


def test_a_cursor_of_a_group_is_for_its_stream_only(api: Api, stream: str) -> None:
    other, _ = new_stream(api)
    cursor = api.group_cursor(stream, "g")
    assert api.get(other, cursor).error == (400, "InvalidParameter", CURSOR_INVALID)
    assert api.consumer("commit", other, cursor).error == (400, "InvalidParameter", CURSOR_INVALID)


@given(st.integers(0, 30), st.text("abcABC-_=", max_size=4))
def test_a_changed_cursor_never_reaches_a_group(oci_server: InProcessServer, at: int, text: str) -> None:
    api = Api(oci_server.http)
    stream = _changed_stream(api)
    cursor = api.group_cursor(stream, "g", instanceName="i")
    changed = cursor[:at] + text + cursor[at + len(text) :]
    reply = api.get(stream, changed)
    if changed.rstrip("=") == cursor:
        assert reply.status == 200
    else:
        assert reply.error == (400, "InvalidParameter", CURSOR_INVALID)
    api.close()


_streams: dict[str, str] = {}


def _changed_stream(api: Api) -> str:
    if api.endpoint not in _streams:
        _streams[api.endpoint] = new_stream(api)[0]
    return _streams[api.endpoint]


def test_only_json_is_answered(api: Api, stream: str) -> None:
    cursor = api.group_cursor(stream, "g")
    reply = api.consumer("heartbeat", stream, cursor)
    assert json.loads(reply.body).keys() == {"value"}
    assert reply.headers["content-type"] == "application/json"
    assert int(reply.headers["content-length"]) == len(reply.body)


async def test_a_group_that_is_still_being_loaded_keeps_no_list_waiting() -> None:
    """Redis may stand still; lists of streams and pages of the console do not need it."""
    lane, loaded = CooperativeScheduler(), asyncio.Event()
    instances = SimpleNamespace(ready=lambda _: loaded.wait(), reservations=lambda *_: [])
    broker = SimpleNamespace(lane=lane, instances=instances)
    settings = SimpleNamespace(committed_offset="last")
    service: Any = SimpleNamespace(broker=broker, settings=settings, stream=lambda _: (broker, None))
    anybody: Any = None
    path = {"streamId": "s", "groupName": "g"}
    call = Call(service, path=path, query=None, headers=None, body=None, principal=anybody, host="", endpoint="")
    asked = asyncio.create_task(get_group(call))
    await asyncio.sleep(0)
    async with asyncio.timeout(30), lane.listing():
        assert not asked.done()
    loaded.set()
    assert (await asked).body.reservations == []
