"""A program's flow with a broker killed in the middle of it: some values before, some as it dies, some afterwards."""

from tests.harness.brokers import Brokers
from tests.harness.fed import Fed
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire

BEFORE, DURING, AFTER = 20, 60, 40
VALUES = [f"value-{number}" for number in range(BEFORE + DURING + AFTER)]


def feed_while_a_broker_dies(program: Fed, three: Brokers, topic: str, killed: int) -> None:
    """Feed it `VALUES`, which it writes to a topic one by one; it waits for nothing but them."""
    asked = next(node for node in three.running if node != killed)
    program.feed(VALUES[:BEFORE])
    wait_for(lambda: program.runs() and stored(three, asked, topic) >= BEFORE, "the first values")
    program.feed(VALUES[BEFORE : BEFORE + DURING])
    three.servers[killed].kill()
    program.feed(VALUES[BEFORE + DURING :])


def stored(three: Brokers, asked: int, topic: str) -> int:
    """How many records a topic has whose leaders are known and answer."""
    found = 0
    for partition, leader in three.leaders(asked, topic).items():
        if leader in three.running:
            with Wire(three.addresses[leader]) as wire:
                found += max(0, wire.offset(topic, -1, partition=partition).offset)
    return found
