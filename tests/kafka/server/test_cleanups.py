"""What ends with a connection is called once, when the connection is lost, whatever else fails."""

from functools import partial
from typing import Any

import msgspec
import pytest
from tests.harness.raw import RawClient
from tests.harness.waiting import wait_for

from headrace.kafka.apis import load
from headrace.kafka.server.cleanups import Cleanups
from headrace.kafka.server.registry import APIS
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import ApiVersionsRequest
from headrace.testing import InProcessServer


def test_calls_each_once_in_order() -> None:
    cleanups = Cleanups()
    called: list[str] = []
    for name in "abc":
        cleanups.add(name, partial(called.append, name))
    cleanups.add("a", lambda: called.append("A"))
    cleanups.discard("b")
    cleanups.discard("unknown")
    assert len(cleanups) == 2
    cleanups.run()
    cleanups.run()
    assert called == ["A", "c"]


def test_calls_at_once_what_is_added_after_the_end() -> None:
    """A request may still be served when its connection is gone."""
    cleanups, called = Cleanups(), []
    cleanups.run()
    cleanups.add("late", lambda: called.append("late"))
    assert called == ["late"]
    assert not cleanups


def test_an_error_does_not_keep_the_others_from_their_end() -> None:
    cleanups, called = Cleanups(), []

    def fail() -> None:
        raise ValueError

    cleanups.add("bad", fail)
    cleanups.add("good", lambda: called.append("good"))
    cleanups.run()
    assert called == ["good"]


def test_a_lost_connection_runs_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    lost: list[int] = []
    api = APIS[ApiVersionsRequest.API_KEY]

    def handle(request: Any, context: RequestContext) -> None:
        number = context.correlation_id
        context.channel.cleanups.add(number, lambda: lost.append(context.correlation_id))
        api.handler(request, context)

    monkeypatch.setitem(APIS, api.key, msgspec.structs.replace(api, handler=handle))
    asked = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    with InProcessServer() as running, RawClient(running.kafka) as stays:
        stays.ask(asked, 3)
        with RawClient(running.kafka) as leaves:
            first = len(lost)
            leaves.ask(asked, 3)
            leaves.ask(asked, 3)
            assert len(lost) == first
        wait_for(lambda: len(lost) == first + 2, "both cleanups of the client that left")
        stays.ask(asked, 3)
        assert len(lost) == first + 2
