"""DeleteRecords: records before an offset are deleted (KIP-107)."""

from tests.harness.wire import Wire, batch

from headrace.kafka.errors import Code


def test_records_are_deleted_up_to_an_offset(wire: Wire, topic: str) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"a", b"b", b"c"))
    assert wire.delete_records(topic, 1) == (0, 1)
    assert wire.offset(topic, -2).offset == 1
    assert wire.fetch(topic, 0).error_code == Code.OFFSET_OUT_OF_RANGE
    assert wire.delete_records(topic, 0) == (0, 1), "never back"
    assert wire.delete_records(topic, 4) == wire.delete_records(topic, -2) == (Code.OFFSET_OUT_OF_RANGE, -1)
    assert wire.delete_records(topic, -1) == (0, 3)
    assert wire.delete_records(topic, 0, partition=7) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)
