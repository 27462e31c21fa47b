"""A Redis program, a Kafka program and an OCI program on one stream: each writes, each reads what all have written.

    headrace serve                       # prints where its APIs are
    python examples/one_stream_three_programs.py --kafka HOST:PORT --http URL --storage URL

The stream is a native topic: a plain Redis Stream with an entry per record.
"""

import argparse
from base64 import b64decode, b64encode

import redis
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import oci
from headrace.testing.oci import throw_away_config

TOPIC = "orders"


def create(kafka: str) -> None:
    """The native topic, with one partition."""
    admin = AdminClient({"bootstrap.servers": kafka})
    topic = NewTopic(TOPIC, num_partitions=1, config={"headrace.storage": "native"})
    admin.create_topics([topic])[TOPIC].result(10)


def redis_writes(link: "redis.Redis") -> None:
    """A Redis program knows the stream by its key and adds what it likes."""
    link.xadd(f"headrace:{TOPIC}:0", {"key": "k1", "value": "from Redis"})
    link.xadd(f"headrace:{TOPIC}:0", {"item": "tea", "cups": "2"})


def kafka_writes(kafka: str) -> None:
    """A Kafka producer knows the topic by its name."""
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
    producer.produce(TOPIC, value=b"from Kafka", key=b"k2", headers={"how": b"confluent-kafka"})
    producer.flush(10)


def oci_writes(client: "oci.streaming.StreamClient", stream_id: str) -> None:
    """An OCI program knows the stream by its OCID."""
    message = oci.streaming.models.PutMessagesDetailsEntry(
        key=b64encode(b"k3").decode(), value=b64encode(b"from OCI").decode()
    )
    put = client.put_messages(stream_id, oci.streaming.models.PutMessagesDetails(messages=[message])).data
    assert put.failures == 0, put


def redis_reads(link: "redis.Redis", count: int) -> list[str]:
    """Read in a consumer group of Redis. The fields are the same from every writer."""
    stream = f"headrace:{TOPIC}:0"
    link.xgroup_create(stream, "redis-readers", "0")
    found = link.xreadgroup("redis-readers", "me", {stream: ">"}, count=count)[0][1]
    link.xack(stream, "redis-readers", *(entry for entry, _ in found))
    return [fields.get("value", str(fields)) for _, fields in found]


def kafka_reads(kafka: str, count: int) -> list[str]:
    """A consumer group of Kafka: in Redis, XINFO GROUPS shows how far it is."""
    settings = {"bootstrap.servers": kafka, "group.id": "kafka-readers", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    consumer.subscribe([TOPIC])
    found: list[str] = []
    while len(found) < count:
        for message in consumer.consume(count, timeout=1):
            if message.error():
                raise KafkaException(message.error())
            found.append((message.value() or b"").decode())
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def oci_reads(client: "oci.streaming.StreamClient", stream_id: str, count: int) -> list[str]:
    """A consumer group of OCI."""
    details = oci.streaming.models.CreateGroupCursorDetails(
        group_name="oci-readers", instance_name="me", type="TRIM_HORIZON", commit_on_get=True
    )
    cursor = client.create_group_cursor(stream_id, details).data.value
    found: list[str] = []
    while len(found) < count:
        answer = client.get_messages(stream_id, cursor, limit=count)
        found += [b64decode(message.value).decode() for message in answer.data]
        cursor = answer.headers["opc-next-cursor"]
    client.consumer_commit(stream_id, cursor)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    for option in ("kafka", "http", "storage"):
        parser.add_argument(f"--{option}", required=True)
    given = parser.parse_args()
    create(given.kafka)
    config = throw_away_config()
    admin = oci.streaming.StreamAdminClient(config, service_endpoint=given.http)
    [stream] = admin.list_streams(compartment_id=config["tenancy"], name=TOPIC).data
    client = oci.streaming.StreamClient(config, service_endpoint=given.http)
    with redis.Redis.from_url(given.storage, decode_responses=True) as link:
        redis_writes(link)
        kafka_writes(given.kafka)
        oci_writes(client, stream.id)
        print("Redis reads", redis_reads(link, 4))
        print("Kafka reads", kafka_reads(given.kafka, 4))
        print("OCI reads  ", oci_reads(client, stream.id, 4))
        for group in link.xinfo_groups(f"headrace:{TOPIC}:0"):
            print(f"group {group['name']}: pending {group['pending']}, lag {group['lag']}")


if __name__ == "__main__":
    main()
