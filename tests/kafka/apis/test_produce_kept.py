"""What the log keeps of a Produce request is its batches, not the request around them: caches count these alone."""

import pytest
from tests.harness.guarded import ROOT, guarded
from tests.harness.wire import batch, produce_request

from headrace.kafka.apis.produce import PRODUCE
from headrace.kafka.errors import Code
from headrace.kafka.server.registry import SHORTCUTS
from headrace.protocol.messages import ProduceRequest

LARGE = 1 << 20
"""One read does not bring it, so it has memory of its own, which batches may keep."""


def memory_of(kept: bytes | bytearray | memoryview) -> int:
    """Bytes that cannot be given back while this is kept."""
    return memoryview(kept.obj if isinstance(kept, memoryview) else kept).nbytes


@pytest.mark.parametrize("others", [1, 101])
def test_a_small_batch_does_not_retain_rejected_ones_of_its_request(others: int) -> None:
    small, refused = batch(b"small"), bytes(LARGE // others)
    request = produce_request("topic", small)
    parts = [ProduceRequest.PartitionProduceData(index=index, records=refused) for index in range(others)]
    request.topic_data.append(ProduceRequest.TopicProduceData(name="nowhere", partition_data=parts))
    with guarded() as server, server.connect(ROOT) as wire:
        wire.create("topic", 1)
        answer = wire.ask(request, 9)
        codes = [part.error_code for topic in answer.responses for part in topic.partition_responses]
        assert codes == [Code.NONE] + [Code.UNKNOWN_TOPIC_OR_PARTITION] * others
        [partition] = server.clusters.default.topics.get("topic").partitions
        [kept], size = partition.read_cached(0, LARGE, whole_first=True)
        assert size == len(small)
        assert memory_of(kept) <= 2 * size


@pytest.mark.parametrize(("values", "copied"), [(1, True), (LARGE, False)])
def test_a_batch_behind_a_long_client_id_does_not_keep_it(values: int, copied: bool) -> None:
    pytest.importorskip("headrace.protocol._produce", reason="only C has a shortcut")
    request = b"".join(produce_request("topic", batch(bytes(values))).encode(9))
    client_id = b"x" * 32_000
    head = PRODUCE.to_bytes(2, "big") + b"\0\x09" + bytes(4) + len(client_id).to_bytes(2, "big") + client_id + b"\0"
    frame = memoryview(bytearray(head + request))
    context = SHORTCUTS[PRODUCE].begin(None, frame, 0, len(frame), True)  # type: ignore[arg-type]  # nobody connected
    assert context is not None
    assert (memory_of(context.batch) < len(frame)) is copied  # type: ignore[attr-defined]
