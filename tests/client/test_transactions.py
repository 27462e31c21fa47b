"""Transactions that one producer prepares and another one ends, against a server in both protocols."""

from dataclasses import replace
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.brokers import brokers

from headrace.client import options as client_options
from headrace.client.cluster import LATEST, Cluster, Committed, Stale
from headrace.client.errors import Code, DecisionError, Fenced, OptionError, ServerUnavailable
from headrace.client.offsets import TopicPartition
from headrace.client.transactions import Identity, TransactionalProducer, Transactions
from headrace.records.build import build
from headrace.testing import Server, server


class World:
    """A topic of one partition, with two clients that share nothing."""

    def __init__(self, bootstrap: str, **options: str) -> None:
        self.name = f"transactions-{uuid4().hex[:12]}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(self.name, 1)])[self.name].result(60)
        self.place = TopicPartition(self.name, 0)
        given = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
        given |= {"kafka.isolation.level": "read_committed", client_options.SERVERS: bootstrap}
        parsed = client_options.parse(given)
        assert parsed is not None
        self.clusters = Cluster(parsed), Cluster(parsed)
        self.one, self.other = map(Transactions, self.clusters)

    def prepare(self, records: int = 1) -> Identity:
        """Write records in a transaction that stays open."""
        identity = self.one.begin(self.name)
        producer = TransactionalProducer(self.one, identity)
        for sequence in range(records):
            batch = build(
                [(None, b"v", 1_700_000_000_000, ())],
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                base_sequence=sequence,
                transactional=True,
            )
            producer.send(self.place, batch)
        producer.flush()
        assert producer.written == {self.place: records}
        return identity

    def stable(self) -> int:
        """The first offset that an open transaction hides."""
        return self.clusters[1].offsets_at({self.place: LATEST})[self.place]

    def ongoing(self) -> list[Identity] | None:
        return self.other.ongoing(lambda name: name == self.name)

    def committed(self) -> dict[TopicPartition, Committed]:
        return self.clusters[1].committed(self.name, stable=True)


@pytest.fixture(params=["transaction.version", "no feature of this cluster"], ids=["second protocol", "first protocol"])
def world(broker: Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("headrace.client.transactions._FEATURE", request.param)
    return World(broker.kafka)


@pytest.mark.parametrize("commit", [True, False])
def test_another_client_ends_a_prepared_transaction(world: World, commit: bool) -> None:
    identity = world.prepare(3)
    assert world.stable() == 0
    assert world.ongoing() == [identity]
    later = world.other.end(identity, commit=commit)
    # The end has a marker.
    assert world.stable() == 4
    assert world.ongoing() == []
    assert (later == identity) == (identity.version == 1)


def test_a_repeated_end_succeeds(world: World) -> None:
    identity = world.prepare()
    assert world.one.end(identity, commit=True) == world.other.end(identity, commit=True)
    assert world.stable() == 2


def test_an_aborted_transaction_cannot_be_committed(world: World) -> None:
    identity = world.prepare()
    world.other.end(identity, commit=False)
    with pytest.raises(Fenced):
        world.one.end(identity, commit=True)
    assert world.stable() == 2


def test_a_later_producer_fences_the_earlier_one(world: World) -> None:
    earlier = world.prepare()
    later = world.other.begin(world.name)
    assert later.producer_epoch > earlier.producer_epoch
    with pytest.raises(Fenced, match=f"transactional ID '{world.name}'"):
        world.one.end(earlier, commit=True)
    assert world.stable() == 2


def test_a_forgotten_id_differs_from_an_aborted_transaction(world: World) -> None:
    identity = replace(world.prepare(), transactional_id="unknown")
    with pytest.raises(Fenced) as raised:
        world.other.end(identity, commit=True)
    assert raised.value.code == Code.INVALID_PRODUCER_ID_MAPPING


def several(world: World, count: int) -> list[Identity]:
    """Prepared transactions of as many IDs."""
    name, identities = world.name, []
    for number in range(count):
        world.name = f"{name}/{number}"
        identities.append(world.prepare())
    world.name = name
    return identities


def test_many_transactions_end_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.transactions._AT_ONCE", 3)
    identities = several(world, 5)
    world.one.end(identities[1], commit=False)
    unknown = replace(identities[3], transactional_id="unknown")
    found = world.other.end_all([*identities[:3], unknown, *identities[3:]], commit=True)
    codes = [None if error is None else error.code for error in found]
    assert codes[1] is not None
    assert codes == [None, codes[1], None, Code.INVALID_PRODUCER_ID_MAPPING, None, None]
    assert world.stable() == 10
    assert world.other.end_all([], commit=True) == []


def test_only_transactions_that_have_not_ended_are_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    identities = several(world, 3)
    tried: list[str] = []

    def check(code: int, what: str, needs: str) -> None:
        tried.append(what)
        if tried.count(what) == 1 and what == str(identities[1]):
            raise Stale(what)
        # As if the connection had been lost with the answer.
        if tried.count(what) == 2:
            raise ServerUnavailable(what)
        assert code == 0, needs

    monkeypatch.setattr("headrace.client.transactions.check", check)
    assert world.other.end_all(identities, commit=True) == [None] * 3
    assert tried == [*map(str, identities), str(identities[1]), str(identities[1])]
    assert world.stable() == 6


def test_transactions_of_several_coordinators_end_at_once() -> None:
    with brokers(2) as started:
        world = World(started.kafka)
        identities = several(world, 24)
        names = [one.transactional_id for one in identities]
        coordinators = world.clusters[1].coordinators(names, transactional=True)
        assert len({connection.place for connection in coordinators}) == 2
        assert world.other.end_all(identities, commit=True) == [None] * 24
        assert world.stable() == 48


def test_offsets_are_committed_with_the_transaction(world: World) -> None:
    identity = world.one.begin(world.name)
    world.one.commit_offsets(identity, world.name, {world.place: Committed(5, "five")})
    identity = world.one.end(identity, commit=True)
    assert world.committed() == {world.place: Committed(5, "five")}
    # The next transaction of the same producer.
    world.one.commit_offsets(identity, world.name, {world.place: Committed(6, "six")})
    world.one.end(identity, commit=False)
    assert world.committed() == {world.place: Committed(5, "five")}


def test_too_long_metadata_is_refused(world: World) -> None:
    identity = world.one.begin(world.name)
    with pytest.raises(DecisionError, match=r"offset\.metadata\.max\.bytes is too small"):
        world.one.commit_offsets(identity, world.name, {world.place: Committed(5, "x" * 5000)})


def test_the_servers_maximum_replaces_the_default_timeout() -> None:
    with server(transaction_max_timeout_ms="60000") as started:
        world = World(started.kafka)
        world.prepare()
        chosen = World(started.kafka, transaction_timeout_ms="60001")
        with pytest.raises(OptionError, match=r"60,001 ms: set option .* to at most its .*, 60,000"):
            chosen.one.begin("id")


def test_what_a_coordinator_cannot_do_yet_is_repeated(broker: Server) -> None:
    world = World(broker.kafka, request_timeout_ms="200")
    answers = iter([Stale("first"), ServerUnavailable("second")])

    def later() -> str:
        for error in answers:
            raise error
        return "done"

    def never() -> None:
        raise Stale("the coordinator loads")

    assert world.one.patiently(later) == "done"
    with pytest.raises(ServerUnavailable, match="the coordinator loads"):
        world.one.patiently(never)
