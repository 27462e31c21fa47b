"""Connections that nobody uses are closed; those that wait for something are not."""

import time

import pytest

from headrace.kafka.codec.messages import ApiVersionsRequest, FetchRequest, MetadataRequest
from headrace.testing import server
from headrace.testing.raw import ConnectionEnded, RawClient


def test_an_idle_connection_is_closed_and_one_that_waits_is_kept() -> None:
    with (
        server(connections_max_idle_ms=300) as started,
        RawClient(started.kafka) as idle,
        RawClient(started.kafka) as waiting,
    ):
        waiting.ask(
            MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")], allow_auto_topic_creation=True), 9
        )
        idle.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 3)
        waiting.send(
            FetchRequest(
                max_wait_ms=1_500,
                min_bytes=1,
                topics=[
                    FetchRequest.FetchTopic(
                        topic="t",
                        partitions=[
                            FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
                        ],
                    )
                ],
            ),
            12,
        )
        began = time.monotonic()
        with pytest.raises(ConnectionEnded):
            idle.receive_frame()

        assert time.monotonic() - began < 1.4
        assert waiting.receive().responses[0].partitions[0].error_code == 0
