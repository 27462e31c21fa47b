"""`min.insync.replicas` above 1 over real replicas: who is acknowledged, who is refused, and what a failover keeps.

`make test LANE=redis-cluster` runs this over the embedded Valkey, `make test LANE=apt` over Debian's Redis.
"""

import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from oci.exceptions import ServiceError
from oci.streaming.models import CreateCursorDetails
from tests.harness.brokers import Brokers, brokers_at
from tests.harness.ledger import Ledger
from tests.harness.redis import debian_redis_program
from tests.harness.redis_cluster import NODE_TIMEOUT_MS, RedisCluster
from tests.harness.replicated import Replicated
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch, opened

from headrace.kafka.errors import Code
from headrace.protocol.messages import ProduceResponse
from headrace.testing import Server, ServerFailed, server
from headrace.testing.oci import OciClients, put

PARTITIONS = 3
BOTH = [
    pytest.param("valkey", marks=pytest.mark.redis_cluster),
    pytest.param("redis", marks=pytest.mark.apt),
]


@pytest.fixture(scope="module", params=BOTH)
def replicated(request: pytest.FixtureRequest) -> Iterator[Replicated]:
    with Replicated(debian_redis_program() if request.param == "redis" else None) as running:
        yield running


@pytest.fixture(scope="module")
def broker(replicated: Replicated) -> Iterator[Server]:
    with server(redis=replicated.url, min_insync_replicas=2, replica_lag_time_max_ms=500) as running:
        yield running


def created(kafka: str, **config: str) -> str:
    name = f"topic-{uuid4().hex[:8]}"
    made = NewTopic(name, PARTITIONS, 1, config={key.replace("_", "."): value for key, value in config.items()})
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([made])[name].result(60)
    return name


def produced(broker: Server, topic: str, acks: int = -1) -> ProduceResponse.PartitionProduceResponse:
    """The answer to one batch."""
    with Wire(broker.kafka) as wire:
        return wire.produce(topic, batch(b"value"), acks=acks)


def accepted(broker: Server, topic: str) -> bool:
    return bool(produced(broker, topic).error_code == Code.NONE)


def refused(broker: Server, topic: str) -> bool:
    """Before the append."""
    return bool(produced(broker, topic).error_code == Code.NOT_ENOUGH_REPLICAS)


@pytest.mark.parametrize("storage", ["log", "native"])
def test_a_replica_that_hangs_is_missed(broker: Server, replicated: Replicated, storage: str) -> None:
    topic = created(broker.kafka, headrace_storage=storage)
    clients = OciClients(broker.http)
    stream = clients.create_stream(f"stream-{topic}")
    (replica,) = replicated.replicas
    wait_for(lambda: accepted(broker, topic), "the replica to be there")
    replica.send(signal.SIGSTOP)
    try:
        after = produced(broker, topic)
        while "has not said in time" in (after.error_message or ""):
            after = produced(broker, topic)  # on a busy machine Redis has not answered in time either
        assert after.error_code == Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert after.error_message == (
            "min.insync.replicas=2: 1 server has all that Redis acknowledged, its primary included; "
            "replicas are away or lag behind"
        )
        # It is known now.
        assert produced(broker, topic).error_code == Code.NOT_ENOUGH_REPLICAS
        assert produced(broker, topic, acks=1).error_code == Code.NONE
        with pytest.raises(ServiceError) as told:
            put(clients.stream_client(), str(stream.id), "value")
        assert told.value.status == 503
        assert "replicas are away or lag behind" in str(told.value.message)
    finally:
        replica.send(signal.SIGCONT)
    wait_for(lambda: accepted(broker, topic), "the replica to be back")


def test_an_idempotent_producer_gets_over_it(broker: Server, replicated: Replicated) -> None:
    """What was appended and not acknowledged is found when it is sent again."""
    topic = created(broker.kafka)
    (replica,) = replicated.replicas
    with Ledger(broker.kafka, topic, partitions=PARTITIONS) as ledger:
        for _ in range(3):
            ledger.send(300)
            ledger.wait_for(sum(ledger.sent))
            replica.send(signal.SIGSTOP)
            try:
                ledger.send(300)
                probe = created(broker.kafka)
                wait_for(partial(refused, broker, probe), "the replica to be missed")
                assert ledger.acknowledged_count < sum(ledger.sent)
            finally:
                replica.send(signal.SIGCONT)
        ledger.settle()
        assert ledger.refused == {}
        ledger.check(broker.kafka)


class Reader:
    """Reads partition 0 of a stream, with Kafka at its leader and with a separate cursor at each broker."""

    def __init__(self, over: Brokers, name: str) -> None:
        self.over, self.name = over, name
        first = OciClients(next(iter(over.servers.values())).http)
        self.stream = str(first.create_stream(name, 1).id)
        self._clients = {node: OciClients(each.http).stream_client() for node, each in over.servers.items()}
        self.cursors = {node: self.cursor(node, "TRIM_HORIZON") for node in over.servers}
        self.seen: dict[int, list[int]] = {node: [] for node in over.servers}
        self.kafka: list[int] = []

    @property
    def leader(self) -> int:
        return self.over.leaders(self.over.running[0], self.name)[0]

    def asked(self, ask: Callable[[Wire], Any]) -> Any:
        """What the leader answers that has opened the partition."""
        answers: list[Any] = []

        def answered() -> bool:
            # It names no leader, or one that has ended, until another broker leads.
            if (leader := self.leader) not in self.over.running:
                return False
            answers.append(self.over.asked(leader, ask))
            return answers[-1].error_code not in {Code.NOT_LEADER_OR_FOLLOWER, Code.KAFKA_STORAGE_ERROR}

        wait_for(answered, "a leader that has opened the partition")
        return answers[-1]

    def cursor(self, node: int, kind: str) -> str:
        details = CreateCursorDetails(partition="0", type=kind)
        return str(self._clients[node].create_cursor(self.stream, details).data.value)

    def read(self) -> None:
        """Go on, everywhere."""
        found = self.asked(lambda wire: wire.fetch(self.name, len(self.kafka)))
        assert found.error_code == Code.NONE
        self.kafka += [record.offset for record in opened(found.records)]
        assert found.high_watermark >= len(self.kafka)
        for node in self.over.running:
            answer = self.messages(node)
            self.seen[node] += [message.offset for message in answer.data]
            self.cursors[node] = answer.headers["opc-next-cursor"]

    def messages(self, node: int) -> Any:
        """What a broker answers to its cursor, asked again while it knows of no leader that answers it."""
        answers: list[Any] = []

        def answered() -> bool:
            try:
                answers.append(self._clients[node].get_messages(self.stream, self.cursors[node]))
            except ServiceError as error:
                if error.status != 503:
                    raise
            return bool(answers)

        wait_for(answered, f"broker {node} to answer")
        return answers[0]

    def has(self, count: int) -> bool:
        self.read()
        return [self.kafka, *(self.seen[node] for node in self.over.running)] == [[*range(count)]] * (
            1 + len(self.over.running)
        )


@pytest.mark.parametrize("program", BOTH)
def test_unreplicated_records_are_not_readable(program: str) -> None:
    """Not after an opening, not at a broker that does not lead: a replica that takes over would take it back."""
    settings = {"min_insync_replicas": 2, "replica_lag_time_max_ms": 3_000, "broker_session_timeout_ms": 3_000}
    with (
        Replicated(debian_redis_program() if program == "redis" else None) as replicated,
        brokers_at(replicated.url, 2, **settings) as two,
    ):
        (replica,) = replicated.replicas
        reader = Reader(two, f"stream-{uuid4().hex[:8]}")
        kept = reader.asked(lambda wire: wire.produce(reader.name, batch(b"kept")))
        assert (kept.error_code, kept.base_offset) == (Code.NONE, 0)
        wait_for(partial(reader.has, 1), "all to read what the replica has")
        replica.send(signal.SIGSTOP)
        try:
            ahead = reader.asked(lambda wire: wire.produce(reader.name, batch(b"ahead"), acks=1))
            assert (ahead.error_code, ahead.base_offset) == (Code.NONE, 1)
            missing = reader.asked(lambda wire: wire.produce(reader.name, batch(b"missing")))
            assert missing.error_code in {Code.NOT_ENOUGH_REPLICAS, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
            assert reader.has(1)
            before = reader.asked(lambda wire: wire.offset(reader.name, -1))
            assert before.offset == 1
            # The new leader recovers it.
            replicated.primary.ask("CLIENT", "KILL", "TYPE", "normal")
            wait_for(lambda: led_anew(reader, before.leader_epoch), "the log to be recovered again")
            assert reader.has(1)
            # Others know how far it was shown, also those that have just been started.
            (state,) = replicated.primary.ask("KEYS", f"*{reader.name}*:state")
            wait_for(lambda: replicated.primary.ask("HGET", str(state), "h") == ["1"], "that to be written down")
            for restarted in (1, 2):
                two.servers[restarted].kill()
                wait_for(lambda: reader.leader in two.running, "the other one to lead")
                assert reader.has(1)
                two.start(restarted)
                two.agree([1, 2])
                assert reader.has(1)
            with pytest.raises(ServiceError, match="how far it can be read is known when its replicas") as told:
                reader.cursor(1, "LATEST")
            assert told.value.status == 503
        finally:
            replica.send(signal.SIGCONT)
        end = 2 + (missing.error_code == Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        wait_for(partial(reader.has, end), "all to read what the replica has got")


def led_anew(reader: Reader, epoch: int) -> bool:
    """Whether all brokers return a different leader epoch."""
    with Wire(reader.over.addresses[reader.over.running[0]]) as wire:
        return bool(wire.metadata(reader.name).topics[0].partitions[0].leader_epoch > epoch)


def test_more_copies_than_there_are_servers(broker: Server) -> None:
    topic = created(broker.kafka, min_insync_replicas="3")
    wait_for(partial(refused, broker, topic), "the replicas to be counted")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", BOTH)
def test_a_shard_that_is_killed_loses_nothing_that_was_acknowledged(program: str) -> None:
    """Its replica hangs at times, so that there is something to be lost; no write waits for it to have all."""
    with (
        RedisCluster(debian_redis_program() if program == "redis" else None, calm=True) as cluster,
        server(
            redis=cluster.url, min_insync_replicas=2, replica_lag_time_max_ms=500, broker_session_timeout_ms=1_500
        ) as broker,
    ):
        topic = created(broker.kafka)
        with Ledger(broker.kafka, topic, partitions=PARTITIONS, socket_timeout_ms=5_000) as ledger:
            for primary in [node for node in cluster.nodes if node.is_primary]:
                replica = cluster.replica_of(primary)
                with cluster.missing_after(NODE_TIMEOUT_MS):
                    ledger.send(3_000)
                    ledger.wait_for(ledger.acknowledged_count + 300)
                    replica.send(signal.SIGSTOP)
                    ledger.send(3_000)
                    primary.kill()
                    replica.send(signal.SIGCONT)
                    wait_for(partial(getattr, replica, "is_primary"), f"{replica.host} to take over")
                    primary.start()
                    cluster.agree()
            ledger.settle()
            assert ledger.refused == {}
            ledger.check(broker.kafka)


def test_the_embedded_valkey_has_no_replicas() -> None:
    with server() as embedded:
        admin = AdminClient({"bootstrap.servers": embedded.kafka})
        wanted = NewTopic("wanted", 1, 1, config={"min.insync.replicas": "2"})
        with pytest.raises(KafkaException, match=r"min\.insync\.replicas=2: the embedded Valkey has no replicas"):
            admin.create_topics([wanted])["wanted"].result(60)
    with pytest.raises(ServerFailed, match=r"min\.insync\.replicas=2: the embedded Valkey has no replicas"):
        server(min_insync_replicas=2).__enter__()
