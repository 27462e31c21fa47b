"""What a client does whose login ends (KIP-368), whichever mechanism it logs in by."""

from typing import Any

from confluent_kafka import Consumer, Producer

from headrace.testing import InProcessServer


def goes_on_when_a_login_ends(running: InProcessServer, settings: dict[str, Any]) -> None:
    """Write, wait for longer than three seconds by the server's clock, write and read: the client logs in again."""
    producer = Producer(settings)
    producer.produce("t", b"1")
    assert producer.flush(60) == 0
    # As if the time were up: what is sent then is sent after another login.
    running.clock.advance(seconds=3)
    producer.produce("t", b"2")
    assert producer.flush(60) == 0
    consumer = Consumer(settings | {"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    assert [each.value() for each in consumer.consume(2, 60)] == [b"1", b"2"]
    consumer.close()
