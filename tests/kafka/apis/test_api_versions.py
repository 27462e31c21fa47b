"""ApiVersions: what is registered, in every format that clients ask in (KIP-511)."""

from typing import Any

import pytest
from tests.harness.wire import Wire, batch, fetch_request, opened, produce_request

from headrace.kafka import apis
from headrace.kafka.errors import Code
from headrace.kafka.server.registry import APIS
from headrace.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ListOffsetsRequest,
    MetadataRequest,
)
from headrace.testing import Server

apis.load()  # as the listener does


SOFTWARE = ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")


def test_api_versions_newer_than_ours_is_answered_in_the_oldest_format(wire: Wire) -> None:
    wire.send_frame(wire.head(18, 99, 5) + b"\x00unknown fields")
    frame = wire.receive_frame()
    answer = ApiVersionsResponse.decode(frame, 4, 0)
    assert frame[:4] == (5).to_bytes(4, "big")
    assert answer.error_code == Code.UNSUPPORTED_VERSION
    ranges = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert ranges[18] == (0, 4)
    # The connection lives on, and the client asks again.
    assert wire.ask(SOFTWARE, ranges[18][1]).error_code == 0


def test_the_header_of_an_api_versions_answer_has_no_tagged_fields(wire: Wire) -> None:
    frame = wire.head(18, 3, 9) + b"".join(SOFTWARE.encode(3))
    wire.send_frame(frame)
    answer = wire.receive_frame()
    assert answer[:4] == (9).to_bytes(4, "big")
    assert answer[4:6] == b"\x00\x00", "the error code follows the correlation id at once"


def test_api_versions_lists_exactly_the_registered_apis(wire: Wire) -> None:
    answer = wire.ask(SOFTWARE, 3)
    told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert told == {key: (api.oldest, api.newest) for key, api in APIS.items()}
    assert told[0][0] == 0, "old librdkafka compresses only where Produce 0 is offered"
    assert told[24] == (0, 3), "later versions are for brokers"
    assert not told.keys() & {71, 72}, "clients manage without, and break on half-made ones"


def test_features(wire: Wire) -> None:
    """A feature that is supported from level 0 on is not in versions before 4, whose clients would fail."""
    old, new = (wire.ask(SOFTWARE, version) for version in (3, 4))
    supported = {each.name: (each.min_version, each.max_version) for each in new.supported_features}
    assert supported == {"group.version": (0, 1), "share.version": (0, 1), "transaction.version": (1, 2)}
    assert [each.name for each in old.supported_features] == ["transaction.version"]
    for answer in (old, new):
        finalized = {each.name: (each.min_version_level, each.max_version_level) for each in answer.finalized_features}
        assert finalized == {"group.version": (1, 1), "share.version": (1, 1), "transaction.version": (2, 2)}
        assert answer.finalized_features_epoch >= 0, "clients ignore features without an epoch"


@pytest.mark.parametrize("name", ["", "-raw", "raw-", "r aw", "räw"])
def test_a_clients_software_name_is_checked(wire: Wire, name: str) -> None:
    answer = wire.ask(ApiVersionsRequest(client_software_name=name, client_software_version="1"), 3)
    assert answer.error_code == Code.INVALID_REQUEST
    assert wire.ask(ApiVersionsRequest(client_software_name="raw", client_software_version=name), 3).error_code
    assert wire.ask(SOFTWARE, 3).error_code == 0


def test_clients_may_begin_with_the_newest_version(running: Server, topic: str) -> None:
    """Some are configured for a version, and never send ApiVersions."""

    def first(request: Any) -> Any:
        with Wire(running.kafka) as client:
            return client.ask(request, APIS[request.API_KEY].newest)

    with Wire(running.kafka) as wire:
        wire.create(topic)
    [described] = first(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])).topics
    topic_id = described.topic_id
    [by_id] = first(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=None, topic_id=topic_id)])).topics
    assert by_id.name == topic
    [produced] = first(produce_request("", batch(b"x"), topic_id=topic_id)).responses
    assert (produced.topic_id, produced.partition_responses[0].error_code) == (topic_id, 0)
    [fetched] = first(fetch_request([(topic_id, 0, 0)])).responses
    assert [record.value for record in opened(fetched.partitions[0].records)] == [b"x"]
    asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    named = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])
    [listed] = first(ListOffsetsRequest(replica_id=-1, topics=[named])).topics
    assert listed.partitions[0].offset == 1
