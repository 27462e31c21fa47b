"""librdkafka's members of both protocols in one group: applications change their protocol by rolling restarts."""

import contextlib
import time
from collections.abc import Iterator
from functools import partial

import pytest
from tests.clients.test_groups import PARTITIONS, Watch, fill
from tests.harness.clients import Client, ClientFailed, Member
from tests.harness.clients.confluent import Confluent
from tests.harness.wire import Wire

from headrace.testing import Server, server


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(num_partitions=1) as started:
        yield started


@pytest.fixture
def newer(running: Server) -> Client:
    return Confluent(running.kafka, group_protocol="consumer")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_change_their_protocol_one_by_one_and_back(
    running: Server, newer: Client, wire: Wire, topic: str, strategy: str
) -> None:
    classic = Confluent(running.kafka, partition_assignment_strategy=strategy)
    group = topic
    wire.create(topic, partitions=PARTITIONS)
    first = classic.member(group, topic)
    second = classic.member(group, topic)
    watch = Watch(first, second)
    watch.until(lambda: watch.settled() and second.owned())
    values = fill(classic, topic, "classic")
    watch.until(lambda: watch.seen(values))
    for number, (client, moment) in enumerate(
        [(newer, "mixed"), (newer, "consumers"), (classic, "mixed again"), (classic, "classic again")]
    ):
        for member in watch.members:
            _commit(member)
        watch.members.append(client.member(group, topic))
        began = time.monotonic()
        watch.until(lambda: watch.settled() and all(member.owned() for member in watch.members))
        print(f"{strategy}, {moment}: joined after {time.monotonic() - began:.2f} s")
        oldest = watch.members.pop(0)
        oldest.close()
        watch.until(watch.settled)
        watch.got.clear()
        new = fill(classic, topic, f"{moment} {number}")
        watch.until(partial(watch.seen, new))
        assert not [record for _, record in watch.got if record.value in values], "committed ones are not repeated"
        assert len(watch.got) == len(new)
        values = new
    for member in watch.members:
        member.close()


def _commit(member: Member) -> None:
    # It may have read nothing since its partitions have moved.
    with contextlib.suppress(ClientFailed):
        member.commit()
