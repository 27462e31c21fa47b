"""ListPartitionReassignments: nothing is being reassigned (KIP-455)."""

from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.protocol import messages as m


def test_nothing_is_being_reassigned(wire: Wire, topic: str) -> None:
    wire.create(topic)
    request = m.ListPartitionReassignmentsRequest
    named = request.ListPartitionReassignmentsTopics(name=topic, partition_indexes=[0, 9])
    for topics in (None, [], [named]):
        answer = wire.ask(request(topics=topics), 0)
        assert (answer.error_code, answer.error_message, answer.topics) == (Code.NONE, None, [])
