"""Clients whose few kilobytes expand to megabytes while Redis is paused: memory, pings and results."""

import os
import signal
from collections import Counter
from contextlib import ExitStack, closing
from typing import Any

from redis import Redis

from headrace.kafka.errors import Code
from headrace.protocol import messages as m
from headrace.records.build import build
from headrace.records.compression import ZSTD
from headrace.testing import server
from tests.harness.wire import Wire, produce_request
from tests.hostile.http.bystander import Bystander

MIB = 1 << 20
CLIENTS, RECORDS, LEAVE = 64, 3, 8
TOPIC = "hostile-stopped"
MOST_MEMORY = 2 * 64 * MIB
"""What docs/limits.md says of opened batches, and as much again for all else that so many clients take."""
WORST_PING_MS = 1_000


def request(name: int, producer: int, timeout_ms: int) -> m.ProduceRequest:
    """A batch of a kilobyte that opens to 3 MiB."""
    records = [(b"%d-%d" % (name, number), bytes(MIB), 1_000, ()) for number in range(RECORDS)]
    batch = build(records, codec=ZSTD, producer_id=producer, producer_epoch=0, base_sequence=0)
    assert len(batch) < 2_000
    made = produce_request(TOPIC, batch)
    made.timeout_ms = timeout_ms
    return made


def answered(wire: Wire) -> Any:
    return wire.receive().responses[0].partition_responses[0]


def keys(link: Any) -> Counter[bytes]:
    """The keys of all records there are, asked by a Redis program."""
    found: Counter[bytes] = Counter()
    after = "-"
    while entries := link.xrange(f"headrace:{TOPIC}:0", after, count=8):
        found.update(fields[b"key"] for _, fields in entries)
        after = f"({entries[-1][0].decode()}"
    return found


def test_expanded_batches_are_bounded_while_redis_is_paused() -> None:
    with ExitStack() as stack:
        started = stack.enter_context(server())
        bystander = stack.enter_context(closing(Bystander(started, http=False)))
        wires = [stack.enter_context(Wire(started.kafka, timeout_s=120)) for _ in range(CLIENTS)]
        wires[0].create(TOPIC, headrace_storage="native")
        producers = [wire.producer_id() for wire in wires]
        storage = started.storage_pid

        clients = list(enumerate(zip(wires, producers, strict=True)))
        stay = clients[LEAVE:]

        def attack() -> None:
            os.kill(storage, signal.SIGSTOP)
            try:
                for name, (wire, producer) in clients:
                    wire.send(request(name, producer, 1_000), 9)
                assert {answered(wire).error_code for wire in wires} == {Code.REQUEST_TIMED_OUT}
                for wire in wires[:LEAVE]:
                    wire.close()
                # The others send them again, as the error demands.
                for name, (wire, producer) in stay:
                    wire.send(request(name, producer, 100_000), 9)
                assert wires[-1].is_silent(0.5)
            finally:
                os.kill(storage, signal.SIGCONT)
            assert {answered(wire).error_code for _, (wire, _) in stay} == {0}

        seen = bystander.watch(attack)
        print(seen)
        assert seen.server_bytes <= MOST_MEMORY
        assert seen.kafka_ms <= WORST_PING_MS
        with closing(Redis.from_url(started.storage)) as link:
            assert keys(link) == {b"%d-%d" % (name, each): 1 for name in range(CLIENTS) for each in range(RECORDS)}
