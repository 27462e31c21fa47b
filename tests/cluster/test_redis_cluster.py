"""Three brokers over a Redis Cluster of three primaries with a replica each: what clients notice of what happens to it.

`make test LANE=redis-cluster` runs this over the embedded Valkey, `make test LANE=apt` over Debian's Redis.
"""

import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
import redis
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from oci.exceptions import ServiceError
from oci.streaming.models import CreateGroupCursorDetails, PutMessagesDetails, PutMessagesDetailsEntry
from tests.cluster.history import History
from tests.cluster.members import KafkaGroup
from tests.cluster.test_oci import Balanced, encoded, values
from tests.harness.brokers import Brokers, brokers_at
from tests.harness.ledger import Ledger, placed
from tests.harness.redis import debian_redis_program
from tests.harness.redis_cluster import PORT, RedisCluster
from tests.harness.waiting import wait_for

from headrace.client.offsets import Range
from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Subscription
from headrace.testing import Server, ServerFailed, server
from headrace.testing.oci import OciClients

PARTITIONS = 6
SETTINGS: dict[str, Any] = {
    "broker_session_timeout_ms": 1_500,
    "broker_heartbeat_interval_ms": 200,
    "headrace_adopt_prefixes": "*",
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("valkey", marks=pytest.mark.redis_cluster),
        pytest.param("redis", marks=pytest.mark.apt),
    ],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    with RedisCluster(debian_redis_program() if request.param == "redis" else None, calm=True) as running:
        yield running


@pytest.fixture(scope="module")
def running(cluster: RedisCluster) -> Iterator[Brokers]:
    with brokers_at(cluster.url, 3, **SETTINGS) as found:
        yield found


@pytest.fixture
def three(running: Brokers) -> Brokers:
    """They have got over what happened to the cluster before."""
    for each in running.servers.values():
        wait_for(partial(healthy, each), "a broker with all of its connections")
    return running


def healthy(broker: Server) -> bool:
    try:
        with urllib.request.urlopen(f"{broker.http}/healthz", timeout=60) as answer:
            return bool(json.load(answer)["storage"] == "reachable")
    except urllib.error.HTTPError as error:
        error.close()
        return False


@pytest.fixture
def topic(three: Brokers) -> str:
    return created(three, f"topic-{uuid4().hex[:8]}")


def created(three: Brokers, name: str, **config: str) -> str:
    """A topic that is there."""
    admin = AdminClient({"bootstrap.servers": three.kafka})
    made = NewTopic(name, PARTITIONS, 1, config={key.replace("_", "."): value for key, value in config.items()})
    admin.create_topics([made])[name].result(60)
    return name


def stream_of(cluster: RedisCluster, topic: str) -> str:
    """The key of the topic's first partition."""
    with LogReader(cluster.url) as log:
        return log.topics(Subscription((topic,)))[topic].streams[0]


def other_than(cluster: RedisCluster, key: str) -> str:
    """A key whose slot another primary has."""
    return next(
        name for name in (f"key-{number}" for number in itertools.count())
        if cluster.primary_of(name) is not cluster.primary_of(key)
    )  # fmt: skip


def fail_over(cluster: RedisCluster, _three: Brokers, stream: str) -> None:
    cluster.fail_over(cluster.primary_of(stream))


def kill_a_primary(cluster: RedisCluster, _three: Brokers, stream: str) -> None:
    cluster.kill(cluster.primary_of(stream))


def fail_over_what_all_go_by(cluster: RedisCluster, _three: Brokers, _stream: str) -> None:
    """The shard with the view, the heartbeats and the registry of topics."""
    cluster.fail_over(cluster.primary_of("headrace:{meta}:view"))


def move_a_slot(cluster: RedisCluster, _three: Brokers, stream: str) -> None:
    """MOVED and ASK: the slot keeps migrating until a client has noticed."""
    source, target = cluster.primary_of(stream), cluster.primary_of(other_than(cluster, stream))
    before = source.refused("ASK")
    cluster.move_slot(
        stream, target, lambda: wait_for(lambda: source.refused("ASK") > before, "an append to be sent on")
    )


def kill_a_broker(_cluster: RedisCluster, three: Brokers, _stream: str) -> None:
    three.servers[2].kill()
    three.agree([1, 3])
    three.start(2)
    three.agree([1, 2, 3])


@pytest.mark.parametrize("accident", [fail_over, kill_a_primary, fail_over_what_all_go_by, move_a_slot, kill_a_broker])
def test_nothing_is_lost_duplicated_or_out_of_order(
    cluster: RedisCluster, three: Brokers, topic: str, accident: Callable[[RedisCluster, Brokers, str], None]
) -> None:
    history = History()
    with (
        Ledger(three.kafka, topic, partitions=PARTITIONS, socket_timeout_ms=3_000) as ledger,
        KafkaGroup(three.kafka, topic, topic, history.audience("group")),
    ):
        with ledger.writing():
            wait_for(lambda: ledger.acknowledged_count > 1_000, "records")
            accident(cluster, three, stream_of(cluster, topic))
            before = ledger.acknowledged_count
            wait_for(lambda: ledger.acknowledged_count > before + 1_000, "records after it")
        ledger.settle()
        assert ledger.refused == {}
        wait_for(lambda: history.unseen(ledger.acknowledged) == 0, "the group to have been given everything")
        history.check(ledger.acknowledged, placed(three.kafka, topic, PARTITIONS))
    cluster.agree()


def put_in_the_end(client: Balanced, stream: str, values: list[str]) -> None:
    """As clients do: what is refused for a moment is put again, and may then be there twice."""
    left = values

    def all_put() -> bool:
        nonlocal left
        entries = [PutMessagesDetailsEntry(key=encoded(value), value=encoded(value)) for value in left]
        try:
            told = client.put_messages(stream, PutMessagesDetails(messages=entries)).data.entries
        except ServiceError as error:
            if error.status != 503:
                raise
            return False
        assert {each.error for each in told} <= {None, "ServiceUnavailable"}, told
        left = [value for value, each in zip(left, told, strict=True) if each.error]
        return not left

    wait_for(all_put, "everything to be put")


def test_a_group_of_oci_instances_keeps_its_cursor(cluster: RedisCluster, three: Brokers) -> None:
    client = Balanced(three)
    stream = str(OciClients(three.servers[1].http).create_stream(f"stream-{uuid4().hex[:8]}", PARTITIONS).id)
    details = CreateGroupCursorDetails(
        group_name="group", instance_name="one", type="TRIM_HORIZON", timeout_in_ms=150_000
    )
    cursor = client.create_group_cursor(stream, details).data.value
    sent: list[str] = []
    seen: set[str] = set()

    def all_seen() -> bool:
        nonlocal cursor
        try:
            messages, cursor = client.read(stream, cursor)
        except ServiceError as error:
            if error.status != 503:
                raise
            return False  # the broker has not got over the failover yet
        seen.update(values(messages))
        return seen == set(sent)

    for turn in range(3):
        batch = [f"value-{turn}-{number}" for number in range(60)]
        put_in_the_end(client, stream, batch)
        sent += batch
        wait_for(all_seen, "the group to have been given everything")
        cluster.fail_over(cluster.primary_of("headrace:group:{default/group}"))
        cluster.agree()


def test_native_topics_are_streams_of_the_cluster(cluster: RedisCluster, three: Brokers) -> None:
    name = created(three, f"native-{uuid4().hex[:8]}", headrace_storage="native")
    consumer = Consumer({"bootstrap.servers": three.kafka, "group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    producer = Producer({"bootstrap.servers": three.kafka})
    for number in range(60):
        producer.produce(name, str(number), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    seen: list[bytes] = []

    def seen_all(count: int) -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            value = message.value()
            assert isinstance(value, bytes)
            seen.append(value)
        return len(seen) >= count

    try:
        wait_for(lambda: seen_all(60), "what was produced")
        # What another program adds wakes those who wait.
        with redis.RedisCluster(cluster.nodes[0].host, PORT) as link:
            link.xadd(f"headrace:{name}:0", {"value": "by hand"})
            link.xadd(f"with{{braces}}:{name}", {"value": "x"})
        wait_for(lambda: seen_all(61), "what was added")
        assert sorted(seen) == sorted([*(str(number).encode() for number in range(60)), b"by hand"])
        adopted = NewTopic(
            f"adopted-{name}",
            num_partitions=-1,
            replication_factor=-1,
            config={"headrace.stream": f"with{{braces}}:{name}", "headrace.partition": "0"},
        )
        admin = AdminClient({"bootstrap.servers": three.kafka})
        with pytest.raises(KafkaException, match="braces in its key cannot be part of a topic"):
            admin.create_topics([adopted])[adopted.topic].result(60)
    finally:
        consumer.close()


def test_readers_of_the_storage_find_each_log(cluster: RedisCluster, three: Brokers, topic: str) -> None:
    """Spark's executors read in this way, by the URL that the server returns."""
    with Ledger(three.kafka, topic, partitions=PARTITIONS) as ledger:
        ledger.send(600)
        ledger.settle()
    native = created(three, f"native-{topic}", headrace_storage="native")
    producer = Producer({"bootstrap.servers": three.kafka})
    for number in range(60):
        producer.produce(native, str(number), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    for name, each in ((topic, 100), (native, 10)):
        with LogReader(three.servers[1].storage) as log:
            topics = log.topics(Subscription((name,)))
            extents = log.extents(topics)
            streams = topics[name].streams
            for place, extent in extents.items():
                batches = list(log.records(streams[place.partition], Range(place, extent.start, extent.end)))
                assert sum(batch.num_rows for batch in batches) == each


def test_a_cluster_is_named_as_one(cluster: RedisCluster, three: Brokers) -> None:
    with pytest.raises(ServerFailed, match=r"is one of a Redis Cluster: name it with redis\+cluster://"):
        server(redis=f"redis://{cluster.nodes[0].host}:{PORT}").__enter__()
    with pytest.raises(ServerFailed, match="has no database but 0"):
        server(redis=f"{cluster.url}/3").__enter__()


@pytest.mark.redis_cluster
def test_slots_without_a_node_are_reported() -> None:
    with RedisCluster(primaries=1, replicas=0) as small:
        small.nodes[0].ask("CLUSTER", "DELSLOTS", 42)
        with pytest.raises(ServerFailed, match="has 1 slots without a primary"):
            server(redis=small.url).__enter__()


@pytest.mark.redis_cluster
@pytest.mark.parametrize("first", [True, False])
def test_a_primary_that_is_down_is_reported_for_any_node_in_the_url(first: bool) -> None:
    with RedisCluster(primaries=3, replicas=0, calm=True) as small:
        dead, *_ = small.nodes if first else small.nodes[1:]
        dead.kill()
        told = rf"has a primary that does not respond: {dead.host}:{PORT}, which has \d+ slots \(\d+-\d+\): "
        with pytest.raises(ServerFailed, match=told):
            server(redis=small.url).__enter__()
