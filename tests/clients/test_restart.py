"""The server stops and starts again on the same data and ports: groups go on where they were."""

import time
from collections.abc import Callable

from tests.harness.clients import Client, Member, Record
from tests.harness.wire import Wire

from headrace.testing import Server

PATIENCE_S = 60
Eventually = Callable[[Callable[[], object]], None]


def send(client: Client, topic: str, first: int, count: int) -> list[bytes]:
    values = [b"%d" % number for number in range(first, first + count)]
    client.send(topic, [Record(value=value) for value in values])
    return values


def take(member: Member, count: int) -> list[bytes | None]:
    """The next values, and whatever comes with them."""
    found: list[bytes | None] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        found += [record.value for record in member.poll(0.1)]
    return found


def committed(server: Server, group: str, topic: str) -> int:
    with Wire(server.kafka) as wire:
        return wire.committed(group, topic)


def test_a_group_resumes_from_its_commits(
    restarted_client: Client, restartable: Server, topic: str, eventually: Eventually
) -> None:
    client = restarted_client
    first = send(client, topic, 0, 20)
    with client.member(topic, topic) as member:
        assert take(member, 20) == first
        member.commit()
        eventually(lambda: committed(restartable, topic, topic) == 20)
    second = send(client, topic, 20, 10)
    restartable.restart()
    third = send(client, topic, 30, 5)
    assert committed(restartable, topic, topic) == 20
    with client.member(topic, topic) as member:
        assert take(member, 15) == second + third


def test_a_member_that_stays_goes_on_over_a_restart(
    restarted_client: Client, restartable: Server, topic: str, eventually: Eventually
) -> None:
    client = restarted_client
    first = send(client, topic, 0, 20)
    with client.member(topic, topic) as member:
        assert take(member, 20) == first
        member.commit()
        eventually(lambda: committed(restartable, topic, topic) == 20)
        restartable.restart()
        second = send(client, topic, 20, 20)
        assert take(member, 20) == second, "nothing lost, nothing again"
        member.commit()
        eventually(lambda: committed(restartable, topic, topic) == 40)


def test_records_of_before_are_read_after_a_restart(restarted_client: Client, restartable: Server, topic: str) -> None:
    sent = send(restarted_client, topic, 0, 50)
    restartable.restart()
    assert [one.value for one in restarted_client.read(topic, 50)] == sent
    send(restarted_client, topic, 50, 1)
    assert [one.offset for one in restarted_client.read(topic, 1, offset=50)] == [50]
