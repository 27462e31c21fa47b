"""The console of one of several brokers: it shows its own state, and names the brokers for the rest."""

import http.client
import re
from collections.abc import Iterator

import pytest
from tests.harness.brokers import Brokers, brokers
from tests.harness.waiting import wait_for
from tests.harness.wire import batch

from headrace.kafka.errors import Code
from headrace.protocol.messages import OffsetCommitRequest

PARTITIONS = 6


@pytest.fixture(scope="module")
def two() -> Iterator[Brokers]:
    with brokers(2) as running:
        yield running


def body(two: Brokers, node: int, path: str) -> tuple[int, str]:
    """Status and HTML."""
    connection = http.client.HTTPConnection(two.servers[node].http.removeprefix("http://"), timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def seen(html: str) -> str:
    """What a reader sees."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def page(two: Brokers, node: int, path: str) -> tuple[int, str]:
    """Status, and what a reader sees."""
    status, html = body(two, node, path)
    return status, seen(html)


def test_each_broker_shows_what_is_its_own_and_who_has_the_rest(two: Brokers) -> None:
    two.asked(1, lambda wire: wire.create("flights", PARTITIONS))
    leaders = two.led("flights", PARTITIONS)
    for node, other in ((1, 2), (2, 1)):
        wait_for(lambda node=node: page(two, node, "/topics/flights")[0] == 200, "the topic's page")  # type: ignore[misc]
        _, text = page(two, node, "/topics/flights")
        assert f"This is broker {node} of 2." in text
        assert (
            f"open the console of broker {other} (127.0.0.1, Kafka port {two.addresses[other].split(':')[1]})" in text
        )
        assert text.count(f"led by broker {other}") == list(leaders.values()).count(other)
        foreign = next((index for index, leader in leaders.items() if leader == other), None)
        if foreign is not None:
            status, text = page(two, node, f"/topics/flights/records?partition={foreign}")
            assert status == 404
            assert f"Partition {foreign} of flights is led by broker {other}" in text


def test_a_group_is_shown_where_it_is_coordinated(two: Brokers) -> None:
    two.asked(1, lambda wire: wire.create("read", 1))
    wait_for(lambda: len(two.leaders(2, "read")) == 1, "the topic on the other broker")
    group = next(name for number in range(99) if two.coordinator(1, name := f"group-{number}") == 2)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(
        name="read",
        partitions=[OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)],
    )
    request = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[topic])

    def taken() -> bool:
        answer = two.asked(2, lambda wire: wire.ask(request, 6))
        return bool(answer.topics[0].partitions[0].error_code == Code.NONE)

    wait_for(taken, "the position")
    assert page(two, 2, f"/groups/{group}")[0] == 200
    assert "This broker coordinates no groups." in page(two, 1, "/groups")[1]
    status, text = page(two, 1, f"/groups/{group}")
    assert status == 404
    assert f"Group {group} is coordinated by broker 2" in text


def test_a_search_covers_the_partitions_of_its_broker(two: Brokers) -> None:
    two.asked(1, lambda wire: wire.create("sought", PARTITIONS))
    leaders = two.led("sought", PARTITIONS)
    for partition, leader in leaders.items():
        for n in range(3):
            wait_for(
                lambda partition=partition, leader=leader, n=n: (
                    two.asked(  # type: ignore[misc]
                        leader, lambda wire: wire.produce("sought", batch(b"value-%d" % n), partition=partition)
                    ).error_code
                    == Code.NONE
                ),
                "the record",
            )
    for node, other in ((1, 2), (2, 1)):
        led = [partition for partition, leader in leaders.items() if leader == node]
        status, html = body(two, node, "/topics/sought/records?q=value-1")
        assert status == 200
        found = {int(each) for each in re.findall(r"partition=(\d+)&amp;from=\d+&amp;show=\d+#record", html)}
        assert found == set(led)
        text = seen(html)
        if led:
            assert f"Searched offsets 0 to 2 of {len(led)} partition" in text
        if len(led) < PARTITIONS:
            assert f"open the console of broker {other}" in text
