"""Administration with the admin clients of the libraries: topics, configuration, groups, positions, offsets by time."""

import time
from collections.abc import Callable, Iterator

import pytest
from tests.harness.clients import ClientFailed, Record
from tests.harness.clients.admin import Admin
from tests.harness.clients.confluent import Confluent
from tests.harness.clients.confluent_admin import ConfluentAdmin
from tests.harness.clients.kafka_python_admin import KafkaPythonAdmin

from headrace.kafka.errors import Code
from headrace.testing import Server

ADMINS = {"confluent-kafka": ConfluentAdmin, "kafka-python": KafkaPythonAdmin}
NOW = time.time_ns() // 1_000_000
Eventually = Callable[[Callable[[], object]], None]


@pytest.fixture(params=sorted(ADMINS))
def admin(request: pytest.FixtureRequest, running: Server) -> Iterator[Admin]:
    with ADMINS[request.param](running.kafka) as made:
        yield made


@pytest.fixture
def client(running: Server) -> Confluent:
    return Confluent(running.kafka)


def refused(call: Callable[[], object]) -> int | None:
    """The code of the error that the call ends with."""
    with pytest.raises(ClientFailed) as caught:
        call()
    return caught.value.code


def test_topics_come_and_go(admin: Admin, topic: str) -> None:
    assert topic not in admin.topics()
    admin.create(topic, 3, {})
    assert topic in admin.topics()
    assert admin.leaders(topic) == {0: 1, 1: 1, 2: 1}
    assert refused(lambda: admin.create(topic, 3, {})) == Code.TOPIC_ALREADY_EXISTS
    admin.delete(topic)
    assert topic not in admin.topics()
    assert refused(lambda: admin.delete(topic)) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert refused(lambda: admin.leaders(topic)) == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_created_again_is_empty(admin: Admin, client: Confluent, topic: str) -> None:
    admin.create(topic, 1, {})
    client.send(topic, [Record(value=b"old")])
    admin.delete(topic)
    admin.create(topic, 2, {})
    assert admin.offset((topic, 0), "latest")[0] == 0
    client.send(topic, [Record(value=b"new")])
    assert [one.value for one in client.read(topic, 1)] == [b"new"]


@pytest.mark.parametrize(
    ("name", "partitions", "configs", "code"),
    [
        ("a b", 1, {}, Code.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, 1, {}, Code.INVALID_TOPIC_EXCEPTION),
        ("right", 1, {"retention.ms": "soon"}, Code.INVALID_CONFIG),
        ("right", 1, {"no.such.key": "1"}, Code.INVALID_CONFIG),
    ],
)
def test_topics_that_cannot_be(admin: Admin, name: str, partitions: int, configs: dict[str, str], code: int) -> None:
    assert refused(lambda: admin.create(name, partitions, configs)) == code


def test_configuration(admin: Admin, topic: str) -> None:
    admin.create(topic, 1, {"retention.ms": "86400000", "max.message.bytes": "5000"})
    found = admin.configs(topic)
    assert (found["retention.ms"], found["max.message.bytes"], found["cleanup.policy"]) == (
        "86400000",
        "5000",
        "delete",
    )
    assert refused(lambda: admin.configs(f"{topic}-gone")) in {Code.UNKNOWN_TOPIC_OR_PARTITION, None}


def test_offsets_by_time(admin: Admin, client: Confluent, topic: str) -> None:
    admin.create(topic, 1, {})
    place = (topic, 0)
    assert admin.offset(place, "max_timestamp") == (-1, -1)
    times = [NOW - 5_000, NOW - 4_000, NOW - 1_000, NOW - 2_000]
    client.send(topic, [Record(value=b"x", timestamp=one) for one in times])
    assert admin.offset(place, "earliest")[0] == 0
    assert admin.offset(place, "latest")[0] == 4
    assert admin.offset(place, "max_timestamp") == (2, NOW - 1_000)
    assert admin.offset(place, NOW - 4_500) == (1, NOW - 4_000)
    assert admin.offset(place, NOW - 4_000) == (1, NOW - 4_000)
    assert admin.offset(place, 0) == (0, NOW - 5_000)
    assert admin.offset(place, NOW)[0] == -1
    # Some libraries find out by themselves, from the metadata, and give a code of their own.
    missing = refused(lambda: admin.offset((f"{topic}-gone", 0), "latest"))
    assert missing is None or missing < 0 or missing == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_group_and_its_members(admin: Admin, client: Confluent, topic: str, eventually: Eventually) -> None:
    admin.create(topic, 4, {})
    assert topic not in admin.groups()
    with client.member(topic, topic) as first, client.member(topic, topic) as second:
        eventually(lambda: (first.poll(0.05), second.poll(0.05)) and first.owned() and second.owned())
        found = admin.group(topic)
        assert found.state == "stable"
        shares = [frozenset(number for _, number in share) for share in found.members.values()]
        assert sorted(map(sorted, shares)) == sorted([sorted(first.owned()), sorted(second.owned())])
        assert topic in admin.groups()
        assert refused(lambda: admin.delete_group(topic)) == Code.NON_EMPTY_GROUP
        assert refused(lambda: admin.move(topic, {(topic, 0): 1})) == Code.UNKNOWN_MEMBER_ID
    found = admin.group(topic)
    assert (found.state, found.members) == ("empty", {})


def test_an_unknown_group(admin: Admin, topic: str) -> None:
    assert admin.committed(f"{topic}-gone") == {}
    assert refused(lambda: admin.delete_group(f"{topic}-gone")) == Code.GROUP_ID_NOT_FOUND
    assert admin.group(f"{topic}-gone").state == "dead"


def test_positions(admin: Admin, client: Confluent, topic: str) -> None:
    admin.create(topic, 2, {})
    client.send(topic, [Record(value=b"%d" % number) for number in range(10)])
    with client.member(topic, topic) as member:
        taken = 0
        while not taken:
            taken = len(member.poll(1, 4))
        member.commit()
    assert admin.committed(topic) == {(topic, 0): taken}
    admin.move(topic, {(topic, 0): 8, (topic, 1): 0})
    assert admin.committed(topic) == {(topic, 0): 8, (topic, 1): 0}
    with client.member(topic, topic) as member:
        found: list[int] = []
        while len(found) < 2:
            found += [one.offset for one in member.poll(1)]
    assert found == [8, 9], "the group goes on from where it was put"
    admin.delete_group(topic)
    assert topic not in admin.groups()
    assert admin.committed(topic) == {}


def test_a_console_gets_the_size_of_partitions(running: Server, client: Confluent, topic: str) -> None:
    with KafkaPythonAdmin(running.kafka) as admin:
        admin.create(topic, 2, {})
        client.send(topic, [Record(value=b"x" * 1000)])
        empty, filled = sorted(admin.sizes(topic))
    assert empty == 0
    assert 1000 < filled < 1200
