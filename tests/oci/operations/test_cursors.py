"""CreateCursor on a real server: where cursors begin, and which are refused."""

from datetime import UTC, datetime

from tests.oci.conftest import Api, new_stream
from tests.oci.messages import at, produce

from headrace.oci.errors import CURSOR_EXPIRED, CURSOR_INVALID
from headrace.testing import InProcessServer


# Cursors
def test_cursors_by_offset_have_bounds(api: Api, stream: str) -> None:
    def refused(kind: str, offset: int | None) -> tuple[int, str, str]:
        asked = {"partition": "0", "type": kind} | ({} if offset is None else {"offset": offset})
        return api.call("POST", f"/streams/{stream}/cursors", asked).error

    for kind in ("AT_OFFSET", "AFTER_OFFSET"):
        assert refused(kind, 0) == (400, "InvalidParameter", "Invalid field offset: the partition has no messages")
    api.put(stream, *[(None, b"%d" % number) for number in range(5)])
    assert api.values(stream, api.cursor(stream, "AT_OFFSET", offset=4)) == [b"4"]
    assert api.values(stream, api.cursor(stream, "AFTER_OFFSET", offset=2)) == [b"3", b"4"]
    after_last = api.cursor(stream, "AFTER_OFFSET", offset=4)
    assert api.values(stream, after_last) == []
    api.put(stream, (None, b"5"))
    assert api.values(stream, after_last) == [b"5"]
    for kind in ("AT_OFFSET", "AFTER_OFFSET"):
        for offset in (-1, 6, 2**63, 2**200):
            assert "between the oldest message, 0, and the latest, 5" in refused(kind, offset)[2]
        assert refused(kind, None)[1] == "MissingParameter"


def test_latest_and_trim_horizon(api: Api, stream: str) -> None:
    api.put(stream, (None, b"before"))
    latest = api.cursor(stream, "LATEST")
    api.put(stream, (None, b"after"))
    assert api.values(stream, latest) == [b"after"]
    assert api.values(stream, api.cursor(stream)) == [b"before", b"after"]


def test_a_time_in_the_future_is_waited_for(oci_server: InProcessServer, api: Api, stream: str) -> None:
    """Records written through Kafka bring their time along, so that the future can be had now."""
    now = int(datetime.now(UTC).timestamp() * 1000)
    cursor = api.cursor(stream, "AT_TIME", time=at(now + 60_000))
    api.put(stream, (None, b"too early"))
    reply = api.get(stream, cursor)
    assert reply.json == []
    produce(oci_server, _name(api, stream), [(None, b"at last", now + 60_000), (None, b"and on", now)])
    assert api.values(stream, cursor) == [b"at last", b"and on"]
    assert api.values(stream, reply.next_cursor) == [b"at last", b"and on"]
    assert api.values(stream, api.get(stream, cursor, 1).next_cursor) == [b"and on"]


def test_at_time_begins_with_the_first_message_that_is_not_older(oci_server: InProcessServer, api: Api) -> None:
    stream, name = new_stream(api)
    now = int(datetime.now(UTC).timestamp() * 1000) - 100_000
    produce(oci_server, name, [(None, b"%d" % number, now + 1000 * number) for number in range(5)])
    assert api.values(stream, api.cursor(stream, "AT_TIME", time=at(now + 1001))) == [b"2", b"3", b"4"]
    assert len(api.values(stream, api.cursor(stream, "AT_TIME", time="1960-01-01T00:00:00Z"))) == 5
    reply = api.call("POST", f"/streams/{stream}/cursors", {"partition": "0", "type": "AT_TIME"})
    assert reply.error == (400, "MissingParameter", "Missing field time, which AT_TIME needs")


def test_garbage_foreign_and_changed_cursors_are_invalid(api: Api, stream: str) -> None:
    other, _ = new_stream(api)
    own, foreign = api.cursor(stream), api.cursor(other)
    for cursor in ("x", own[:-1], own + "A", own[1:], own.swapcase(), foreign, "A" * 1024, "ü", own + "=" * 1000):
        assert api.get(stream, cursor).error == (400, "InvalidParameter", CURSOR_INVALID)
        for what in ("commit", "heartbeat"):
            assert api.consumer(what, stream, cursor).error == (400, "InvalidParameter", CURSOR_INVALID)
    for what in ("commit", "heartbeat"):
        assert api.consumer(what, stream, own).error == (400, "InvalidParameter", CURSOR_INVALID)
    assert api.call("GET", f"/streams/{stream}/messages").error == (
        400, "MissingParameter", "Missing query parameter cursor",
    )  # fmt: skip


def test_cursors_expire(api: Api) -> None:
    with InProcessServer(oci_auth="off", oci_cursor_expiry_ms=60_000) as server:
        mine = Api(server.http)
        stream, _ = new_stream(mine)
        cursors = [mine.cursor(stream), mine.group_cursor(stream, "g", timeoutInMs=600_000)]
        # The time that the test takes comes on top.
        server.clock.advance(seconds=35)
        following = [mine.get(stream, cursor).next_cursor for cursor in cursors]
        server.clock.advance(seconds=35)
        for cursor in cursors:
            assert mine.get(stream, cursor).error == (400, "InvalidParameter", CURSOR_EXPIRED)
        assert mine.consumer("heartbeat", stream, cursors[1]).error[2] == CURSOR_EXPIRED
        assert [mine.get(stream, cursor).status for cursor in following] == [200, 200]
        mine.close()


# With Kafka
def _name(api: Api, stream: str) -> str:
    return str(api.done("GET", f"/streams/{stream}")["name"])
