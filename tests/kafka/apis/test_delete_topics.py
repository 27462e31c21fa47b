"""DeleteTopics: by name and by id (KIP-516)."""

import pytest
from tests.harness.wire import Wire
from tests.kafka.topic_requests import described

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    DeleteTopicsRequest,
)


@pytest.mark.parametrize("version", range(1, 7))
def test_versions_of_delete_topics(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    request = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name=topic)], topic_names=[topic], timeout_ms=1_000
    )
    [found] = wire.ask(request, version).responses
    assert (found.name, found.error_code) == (topic, 0)
    assert wire.ask(request, version).responses[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert described(wire, topic)[0] == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_delete_by_id(wire: Wire, topic: str) -> None:
    wire.create(topic)
    topic_id = wire.metadata(topic).topics[0].topic_id
    request = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=1_000
    )
    assert wire.ask(request, 6).responses[0].error_code == 0
    assert wire.ask(request, 6).responses[0].error_code == Code.UNKNOWN_TOPIC_ID
