"""Metadata of a log without a leader."""

from typing import Any

import pytest

from headrace.kafka.apis.metadata import PartitionsEncoder
from headrace.kafka.errors import Code
from headrace.membership.view import Leader
from headrace.protocol.encoder import EncodedArray
from headrace.protocol.messages import MetadataResponse


@pytest.mark.parametrize("version", [0, 5, 7, 9, 12])
def test_of_a_log_whose_leader_is_gone_it_says_that_there_is_none(version: int) -> None:
    encoded: Any = EncodedArray(2, PartitionsEncoder(version).encode([Leader(7, 3), Leader(9, -1)], 0))
    told = MetadataResponse(topics=[MetadataResponse.MetadataResponseTopic(name="t", partitions=encoded)])
    led, lost = MetadataResponse.decode(b"".join(told.encode(version)), 0, version).topics[0].partitions
    assert (led.error_code, led.leader_id, led.isr_nodes) == (Code.NONE, 3, [3])
    assert (lost.error_code, lost.leader_id, lost.isr_nodes) == (Code.LEADER_NOT_AVAILABLE, -1, [])
    assert (led.leader_epoch, lost.leader_epoch) == ((7, 9) if version >= 7 else (-1, -1))
