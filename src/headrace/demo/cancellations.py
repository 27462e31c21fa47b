"""The topic of the canceled flights, as readers of committed records see it."""

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.demo.flights import Figure, Figures, Group, Tally

TOPIC = "flights-cancelled"
_PATIENCE_S = 60


class _Flight(msgspec.Struct):
    carrier: str
    month: int
    dep_delay: int | None


def of(flights: Figures) -> dict[Group, Figure]:
    """Return the figures of those flights that were canceled."""
    counts = {group: one.flights - one.departed for group, one in flights.items()}
    return {group: Figure(count, 0, 0) for group, count in counts.items() if count}


def read(kafka: str, partitions: int) -> dict[Group, Figure]:
    """Count the records of the topic. Raises KafkaException; TimeoutError if a partition has no end for a minute."""
    settings = {"bootstrap.servers": kafka, "group.id": TOPIC, "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.partition.eof": True, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(partitions)])
        tally = Tally()
        ended: set[int | None] = set()
        while len(ended) < partitions:
            message = consumer.poll(_PATIENCE_S)
            if message is None:
                raise TimeoutError(f"no end of {TOPIC} for {_PATIENCE_S} s")
            error = message.error()
            if error is None:
                flight = msgspec.json.decode(message.value() or b"", type=_Flight)
                tally.add(flight.carrier, flight.month, flight.dep_delay)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            elif error.fatal():
                raise KafkaException(error)
        return tally.figures()
    finally:
        consumer.close()
