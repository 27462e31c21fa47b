"""The end of a native topic at brokers that were not notified of its entries: they query Redis."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire
from tests.oci.conftest import COMPARTMENT, Api

from headrace.storage.layout.native import offset_at
from headrace.storage.native.topics import RedisNative
from headrace.testing import InProcessServer

TOPIC, KEY = "plain", "headrace:plain:0"


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


@pytest.fixture
def raw(store: RedisServer) -> Iterator[Any]:
    """A Redis program."""
    with redis.Redis.from_url(store.url, decode_responses=True) as link:
        yield link


@pytest.fixture
def apis(store: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Api]]:
    """The OCI API of two brokers without notifications from Redis, and a native topic with one partition."""
    monkeypatch.setattr(RedisNative, "watch", lambda *_: None)
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(InProcessServer(redis=store.url, node_id=node, oci_auth="off")) for node in (1, 2)
        ]
        wires = [stack.enter_context(Wire(each.kafka)) for each in started]
        wires[0].create(TOPIC, headrace_storage="native")
        for wire in wires:
            while wire.metadata(TOPIC).topics[0].error_code:
                """The other one hears of it soon."""
        found = [Api(each.http) for each in started]
        for each in found:
            stack.callback(each.close)
        yield found


@pytest.fixture
def stream(apis: list[Api]) -> str:
    """The topic's OCID."""
    [found] = apis[0].done("GET", f"/streams?compartmentId={COMPARTMENT}&name={TOPIC}")
    return str(found["id"])


def add(raw: Any, count: int) -> list[int]:
    """More entries; their offsets."""
    return [offset_at(raw.xadd(KEY, {"value": "x"}).encode()) for _ in range(count)]


def test_a_latest_cursor_begins_after_unannounced_entries(apis: list[Api], stream: str, raw: Any) -> None:
    last = add(raw, 3)[-1]
    for api in apis:
        latest = api.cursor(stream, "LATEST")
        # From here on it is known, also to a broker that did not ask for the cursor before.
        assert len(api.values(stream, api.cursor(stream, "AT_OFFSET", offset=last))) == 1
        assert api.values(stream, latest) == []


def test_a_cursor_begins_at_an_unannounced_message(apis: list[Api], stream: str, raw: Any) -> None:
    offsets = add(raw, 3)
    for api in apis:
        assert len(api.values(stream, api.cursor(stream, "AT_OFFSET", offset=offsets[1]))) == 2


def test_a_cursor_of_one_broker_is_none_from_the_future_for_another(apis: list[Api], stream: str, raw: Any) -> None:
    last = add(raw, 3)[-1]
    behind = apis[0].cursor(stream, "AFTER_OFFSET", offset=last)
    assert apis[1].values(stream, behind) == []
