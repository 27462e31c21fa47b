"""A share group on the native partitions of two brokers, one of which is killed."""

import threading
from collections import Counter
from typing import Any

import redis
from confluent_kafka import ShareConsumer
from tests.harness.brokers import brokers
from tests.harness.waiting import wait_for
from tests.kafka.sharer import configure

from headrace.storage.layout.native import offset_at

PARTITIONS = 4
ENTRIES = 200


class Worker(threading.Thread):
    """A consumer that accepts everything, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self.got: Counter[tuple[int, int]] = Counter()
        self.stopping = threading.Event()
        self._consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": topic})
        self._consumer.subscribe([topic])

    def run(self) -> None:
        while not self.stopping.is_set():
            for message in self._consumer.poll(0.1) or ():
                if message.error() is None:
                    self.got[message.partition() or 0, message.offset() or 0] += 1
        self._consumer.close()


def add(link: Any, topic: str) -> set[tuple[int, int]]:
    """Entries of a Redis program in each partition."""
    return {
        (index, offset_at(link.xadd(f"headrace:{topic}:{index}", {"value": "v"}).encode()))
        for index in range(PARTITIONS)
        for _ in range(ENTRIES // PARTITIONS)
    }


def test_members_continue_after_the_end_of_a_broker() -> None:
    with brokers(2, broker_session_timeout_ms=3_000) as found:
        topic = "shared"
        found.asked(1, lambda wire: wire.create(topic, PARTITIONS, headrace_storage="native"))
        found.asked(1, lambda wire: configure(wire, topic, share_auto_offset_reset="earliest"))
        leaders = found.led(topic, PARTITIONS)
        workers = [Worker(found.kafka, topic) for _ in range(2)]
        with redis.Redis.from_url(found.redis.url, decode_responses=True) as link:
            for worker in workers:
                worker.start()
            try:
                added = add(link, topic)
                wait_for(lambda: added <= {*workers[0].got, *workers[1].got}, "all entries")
                found.servers[max(leaders.values())].kill()
                added |= add(link, topic)
                wait_for(lambda: added <= {*workers[0].got, *workers[1].got}, "all entries after the kill")
            finally:
                for worker in workers:
                    worker.stopping.set()
                for worker in workers:
                    worker.join()
        assert {*workers[0].got, *workers[1].got} == added
