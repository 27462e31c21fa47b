"""What readers of committed records see of a topic."""

from collections import Counter

from confluent_kafka import Consumer, KafkaError, TopicPartition


def committed(bootstrap: str, topic: str) -> Counter[str]:
    """Read to the end, or to the first transaction that is open; a record's value -> how often it is there."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "committed", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.partition.eof": True})
    partitions = consumer.list_topics(topic, 60).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found: Counter[str] = Counter()
    ended: set[int | None] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(10)
        error = None if message is None else message.error()
        if message is not None and error is None:
            found[(message.value() or b"").decode()] += 1
        # What else comes instead of a record is about a connection, which the client makes again.
        elif message is not None and error is not None and error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return found
