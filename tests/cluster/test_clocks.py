"""Brokers whose clocks differ by a minute: all stay members, nothing is lost, and they send requests to each other."""

import contextlib
import re
import subprocess
from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.brokers import KEPT, Brokers
from tests.harness.ledger import Ledger
from tests.harness.redis import RedisServer

from headrace.testing import server
from headrace.testing.oci import OciClients, put

PARTITIONS = 6
OFFSETS_S = {1: -60, 2: 0, 3: 60}
pytestmark = pytest.mark.apt


@pytest.fixture
def three() -> Iterator[Brokers]:
    library = subprocess.run(["faketime", "now", "printenv", "LD_PRELOAD"], capture_output=True, text=True, check=True)
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(RedisServer(options=KEPT))
        servers = {}
        for node, offset in OFFSETS_S.items():
            environment = {
                "LD_PRELOAD": library.stdout.strip(),
                "FAKETIME": f"{offset:+d}s",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
            # Less than their clocks differ by, and more than a busy machine keeps one of them waiting.
            made = server(redis=redis.url, node_id=node, environment=environment, broker_session_timeout_ms=30_000)
            servers[node] = stack.enter_context(made)
        brokers = Brokers(servers)
        brokers.agree(list(servers))
        for node in (1, 2):
            # The last one joined that view; their line of it comes a moment after they go by it.
            servers[node].logged('"brokers": [1, 2, 3]')
        differ = "the clocks of this machine and of Redis differ"
        for node, how in ((1, "behind"), (3, "ahead of")):
            servers[node].logged(differ)
            assert re.search(rf'"node": {node}, "this_machine": "(59|60|61) s {how} Redis"', servers[node].log())
        assert differ not in servers[2].log()
        yield brokers


def test_all_brokers_stay_and_nothing_is_lost(three: Brokers) -> None:
    views = {node: each.log().count('"event": "cluster membership changed"') for node, each in three.servers.items()}
    topic = f"topic-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": three.kafka})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    with Ledger(three.kafka, topic, partitions=PARTITIONS) as ledger:
        ledger.send(6_000)
        ledger.settle()
        assert ledger.refused == {}
        ledger.check(three.kafka)
    # Every broker asks the others for what they lead: their seals have the time in them.
    stream = OciClients(three.servers[1].http).create_stream(f"stream-{topic}", PARTITIONS).id
    for each in three.servers.values():
        values = [str(number) for number in range(20)]
        assert len(put(OciClients(each.http).stream_client(), str(stream), *values)) == len(values)
    assert {
        node: each.log().count('"event": "cluster membership changed"') for node, each in three.servers.items()
    } == views
