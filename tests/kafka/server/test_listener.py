"""Connections are limited per address and in total; a disconnect makes room."""

import contextlib
from typing import Any

import pytest
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire

from headrace.client.channel import ConnectionEnded
from headrace.protocol.messages import ApiVersionsRequest
from headrace.testing import InProcessServer

MOST = 3


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_ip"])
def test_there_are_so_many_connections_and_no_more(limit: str) -> None:
    settings: dict[str, Any] = {limit: MOST}
    with InProcessServer(**settings) as running, contextlib.ExitStack() as stack:
        served: list[Wire] = []

        def let_in() -> bool:
            wire = Wire(running.kafka)
            try:
                wire.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 3)
            except (ConnectionEnded, ConnectionError):
                wire.close()
                return False
            stack.callback(wire.close)
            served.append(wire)
            return True

        # A connection that has just ended may be counted for a moment.
        for number in range(MOST):
            wait_for(let_in, f"connection {number}")
        assert [let_in() for _ in range(3)] == [False] * 3
        for wire in served[:]:  # they are served all the same
            assert wire.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 3)
        served[0].close()
        wait_for(let_in, "a place for one more")
