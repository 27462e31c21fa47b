"""What a client sent that is gone."""

from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch, fetch_request

from headrace.protocol.messages import ProduceRequest
from headrace.testing import Server

PARTITIONS = range(4)


def test_records_with_acks_0_are_stored_although_their_client_has_disconnected(running: Server, wire: Wire) -> None:
    """Batches for native topics have turns of their own, and a client that wants no answer leaves at once."""
    data = ProduceRequest.PartitionProduceData
    names = [wire.create(f"gone-{number}", len(PARTITIONS), headrace_storage="native") for number in range(20)]
    for name in names:
        parts = [data(index=index, records=batch(b"x")) for index in PARTITIONS]
        named = ProduceRequest.TopicProduceData(name=name, partition_data=parts)
        with Wire(running.kafka) as leaving:
            leaving.send(ProduceRequest(acks=0, timeout_ms=1_000, topic_data=[named]), 9)

    def stored() -> int:
        answer = wire.ask(fetch_request([(name, index, 0) for name in names for index in PARTITIONS]), 12)
        return sum(bool(each.records) for topic in answer.responses for each in topic.partitions)

    wait_for(lambda: stored() == len(names) * len(PARTITIONS), "all that was sent")
