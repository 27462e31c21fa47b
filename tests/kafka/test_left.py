"""What a client sent before it left: what it wants no answer to is stored all the same, also behind what takes long."""

import asyncio
from typing import Any, cast

from tests.harness.guarded import ROOT, guarded
from tests.harness.waiting import until
from tests.harness.wire import batch, fetch_request, opened

from headrace.access.principal import Principal
from headrace.broker.clusters import Clusters
from headrace.broker.logins import Admitted
from headrace.kafka.codec import headers
from headrace.kafka.codec import messages as m
from headrace.kafka.codec.message import Message
from headrace.kafka.connection import Connection
from headrace.kafka.listener import KafkaListener

PARTITIONS = 101
"""With so many a request is placed turn by turn, and holds up what is sent behind it."""
NAME = "leaving"


def frame(request: Message, version: int = 9) -> bytes:
    body = b"".join([headers.encode_request_header(request.API_KEY, version, 1, NAME), *request.encode(version)])
    return len(body).to_bytes(4, "big") + body


def long(topic: str, acks: int = 0) -> m.ProduceRequest:
    parts = [m.ProduceRequest.PartitionProduceData(index=each, records=batch(b"long")) for each in range(PARTITIONS)]
    named = m.ProduceRequest.TopicProduceData(name=topic, partition_data=parts)
    return m.ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=[named])


class Gone:
    """A transport that has ended."""

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name in {"peername", "sockname"} else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return True


async def leave(clusters: Clusters, *requests: Message) -> None:
    """Send requests as a client that is gone before any other turn of the loop, and wait until they are through."""
    listener = KafkaListener(clusters.default, max_request_bytes=1 << 20)
    connection = Connection(listener)
    connection.connection_made(cast("asyncio.Transport", Gone()))
    connection.enter(Admitted(Principal(ROOT), clusters.default), "PLAIN")
    sent = b"".join(map(frame, requests))
    connection.get_buffer(-1)[: len(sent)] = sent
    connection.buffer_updated(len(sent))
    connection.connection_lost(None)
    assert listener.memory.used, "it is counted until it is through"
    await until(lambda: not listener.memory.used)


def test_one_whose_client_leaves_before_its_first_step_is_stored() -> None:
    with guarded() as server, server.connect(ROOT) as wire:
        wire.create("topic", PARTITIONS)
        server.run(leave(server.clusters, long("topic")))
        answer = wire.ask(fetch_request([("topic", index, 0) for index in range(PARTITIONS)]), 12)
        found = [opened(each.records) for topic in answer.responses for each in topic.partitions]
        assert [len(records) for records in found] == [1] * PARTITIONS
