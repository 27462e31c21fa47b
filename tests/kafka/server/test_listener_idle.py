"""Idle connections are closed; connections with a pending request are not."""

import contextlib

import pytest
from tests.harness.wire import Wire, batch, fetch_request, opened

from headrace.client.channel import ConnectionEnded
from headrace.protocol.messages import ApiVersionsRequest
from headrace.testing import Server, server

PATIENCE_MS = 40_000
"""Far longer than it takes to be closed, and shorter than a client waits for an answer."""


def produce(started: Server) -> None:
    """Again if the machine was paused for so long that the connection was idle, too."""
    produced = False
    while not produced:
        with contextlib.suppress(ConnectionEnded, ConnectionError), Wire(started.kafka) as third:
            third.produce("t", batch(b"waited for"))
            produced = True


def test_an_idle_connection_is_closed_and_one_that_waits_is_kept() -> None:
    with server(connections_max_idle_ms=5_000) as started, Wire(started.kafka) as waiting:
        waiting.create("t")
        waiting.send(fetch_request([("t", 0, 0)], max_wait_ms=PATIENCE_MS), 12)
        with Wire(started.kafka) as idle:
            idle.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 3)
            with pytest.raises(ConnectionEnded):
                idle.receive_frame()
        produce(started)
        (record,) = opened(waiting.receive().responses[0].partitions[0].records)
        assert record.value == b"waited for"
