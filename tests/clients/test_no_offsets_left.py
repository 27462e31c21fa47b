"""A topic without offsets below 2^53: every client is refused at once, and tries no more."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from tests.harness.clients import Client, ClientFailed, Record
from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.testing import Server
from headrace.testing.oci import OciClients, throw_away_config

_SOON_S = 20
"""Clients that try again do so for two minutes at least."""


@pytest.fixture
def link(running: Server) -> Iterator[Any]:
    with redis.Redis.from_url(running.storage) as client:
        yield client


@pytest.mark.parametrize("idempotent", [False, True])
def test_native(client: Client, wire: Wire, topic: str, link: Any, *, idempotent: bool) -> None:
    wire.create(topic, headrace_storage="native")
    link.xadd(f"headrace:{topic}:0", {"value": "x"}, id=f"{2**43 - 1}-1023")
    began = time.monotonic()
    with pytest.raises(ClientFailed) as failed:
        client.send(topic, [Record(value=b"%d" % number) for number in range(20)], idempotent=idempotent)
    assert time.monotonic() - began < _SOON_S
    if failed.value.code is not None:
        assert failed.value.code == Code.POLICY_VIOLATION
    assert link.xlen(f"headrace:{topic}:0") == 1


def test_oci(running: Server, wire: Wire, topic: str, link: Any) -> None:
    import oci  # noqa: PLC0415

    wire.create(topic, headrace_storage="native")
    link.xadd(f"headrace:{topic}:0", {"value": "x"}, id=f"{2**43 - 1}-1023")
    clients = OciClients(running.http)
    [stream] = clients.admin_client().list_streams(compartment_id=throw_away_config()["tenancy"], name=topic).data
    entry = oci.streaming.models.PutMessagesDetailsEntry(key=None, value="eA==")
    with pytest.raises(oci.exceptions.ServiceError) as refused:
        clients.stream_client().put_messages(stream.id, oci.streaming.models.PutMessagesDetails(messages=[entry]))
    assert (refused.value.status, refused.value.code) == (400, "LimitExceeded")
    assert "2^53" in refused.value.message
