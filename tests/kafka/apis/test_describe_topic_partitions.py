"""DescribeTopicPartitions (KIP-966): a page of partitions at a time, and nothing of what may not be described."""

from collections.abc import Iterator

import pytest
from tests.harness.guarded import ROOT, Guarded, guarded
from tests.harness.wire import Wire
from tests.kafka.test_denied import rule

from headrace.kafka.apis.describe_topic_partitions import MOST_PARTITIONS
from headrace.kafka.errors import Code
from headrace.protocol.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from headrace.security.access.acls import Pattern
from headrace.security.access.required_acls import ResourceType

Cursor = tuple[str, int] | None


def ask(
    wire: Wire, *names: str, limit: int = MOST_PARTITIONS, cursor: Cursor = None
) -> DescribeTopicPartitionsResponse:
    asked = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else DescribeTopicPartitionsRequest.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    answer: DescribeTopicPartitionsResponse = wire.ask(asked, 0)
    return answer


def next_of(answer: DescribeTopicPartitionsResponse) -> Cursor:
    found = answer.next_cursor
    return None if found is None else (found.topic_name, found.partition_index)


def pages(wire: Wire, *names: str, limit: int) -> Iterator[list[tuple[str, int]]]:
    """Topic and partition of each that a page has."""
    cursor: Cursor = None
    while True:
        answer = ask(wire, *names, limit=limit, cursor=cursor)
        yield [(topic.name or "", each.partition_index) for topic in answer.topics for each in topic.partitions]
        cursor = next_of(answer)
        if cursor is None:
            return


def test_a_topic_is_described_as_metadata_does(wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=3)
    [found] = ask(wire, topic).topics
    [known] = wire.metadata(topic).topics
    assert (found.error_code, found.name, found.topic_id, found.is_internal) == (0, topic, known.topic_id, False)
    assert [
        (each.partition_index, each.leader_id, each.leader_epoch, each.replica_nodes, each.isr_nodes)
        for each in found.partitions
    ] == [
        (each.partition_index, each.leader_id, each.leader_epoch, each.replica_nodes, each.isr_nodes)
        for each in known.partitions
    ]
    # Everything: Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs.
    assert found.topic_authorized_operations == sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))


def test_missing_topics_are_listed_by_name_and_not_created(wire: Wire, topic: str) -> None:
    wire.create(topic)
    answer = ask(wire, "a b", topic, f"{topic}-not")
    assert {each.name: each.error_code for each in answer.topics} == {
        "a b": Code.INVALID_TOPIC_EXCEPTION,
        topic: 0,
        f"{topic}-not": Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert wire.metadata(f"{topic}-not").topics[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
def test_pages_have_each_partition_once_in_order(wire: Wire, topic: str, limit: int) -> None:
    names = [f"{topic}-{letter}" for letter in "cab"]
    for name in names:
        wire.create(name, partitions=3)
    every = [(name, index) for name in sorted(names) for index in range(3)]
    # However often a topic is named.
    found = list(pages(wire, *names, *names, limit=limit))
    assert [each for page in found for each in page] == every
    assert max(map(len, found)) == min(limit, 9)
    assert sum(map(bool, found)) == -(-9 // limit)

    everything = [each for page in pages(wire, limit=limit) for each in page]
    assert [each for each in everything if each[0] in names] == every
    assert everything == sorted(set(everything))


def test_a_page_is_bounded_whatever_is_asked_for(wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=3)
    assert [len(page) for page in pages(wire, topic, limit=0)] == [1, 1, 1]
    assert [len(page) for page in pages(wire, topic, limit=-5)] == [1, 1, 1]
    wide = f"{topic}-wide"
    wire.create(wide, partitions=MOST_PARTITIONS + 1)
    assert [len(page) for page in pages(wire, wide, limit=2**31 - 1)] == [MOST_PARTITIONS, 1]
    wire.delete(wide)  # others page through all that there is


def test_a_cursor_that_leads_nowhere(wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=3)
    for cursor in ((topic, -1), (f"{topic}-not", 0)):
        answer = ask(wire, topic, cursor=cursor)
        assert [(each.name, each.error_code) for each in answer.topics] == [(topic, Code.INVALID_REQUEST)]
    answer = ask(wire, topic, cursor=(topic, 7))
    assert [(each.name, each.error_code, each.partitions) for each in answer.topics] == [(topic, 0, [])]
    assert next_of(answer) is None


@pytest.fixture(scope="module")
def ruled() -> Iterator[Guarded]:
    with guarded() as started:
        with started.connect(ROOT) as root:
            for name in ("a-hidden", "b-mine", "c-hidden", "d-mine", "e-hidden"):
                root.create(name, partitions=2)
        started.allow(
            rule("User:jane", None, ResourceType.TOPIC, "b-", pattern=Pattern.PREFIXED),
            rule("User:jane", None, ResourceType.TOPIC, "d-", pattern=Pattern.PREFIXED),
        )
        yield started


def test_no_page_and_no_cursor_reveals_hidden_topics(ruled: Guarded) -> None:
    with ruled.connect("jane") as jane:
        cursor: Cursor = None
        seen = []
        for _ in range(4):
            answer = ask(jane, limit=1, cursor=cursor)
            seen += [(topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions]
            cursor = next_of(answer)
            assert cursor is None or cursor[0].endswith("-mine")
        assert cursor is None
    assert seen == [("b-mine", 0), ("b-mine", 1), ("d-mine", 0), ("d-mine", 1)]


def test_a_refusal_does_not_depend_on_the_existence_of_the_resource(ruled: Guarded) -> None:
    refused = Code.TOPIC_AUTHORIZATION_FAILED
    with ruled.connect("jane") as jane:
        answer = ask(jane, "a-hidden", "b-mine", "nowhere")
        told = {each.name: (each.error_code, len(each.partitions)) for each in answer.topics}
        assert told == {"a-hidden": (refused, 0), "b-mine": (0, 2), "nowhere": (refused, 0)}
        assert {each.topic_id.int for each in answer.topics if each.error_code} == {0}
        # A cursor at a refused topic reveals nothing either.
        there, gone = (ask(jane, "b-mine", name, cursor=(name, 0)) for name in ("a-hidden", "a-nowhere"))
        assert [each.error_code for each in there.topics] == [each.error_code for each in gone.topics]
