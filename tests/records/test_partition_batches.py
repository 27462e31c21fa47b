"""Which partition a key of a REST message decides for."""

from headrace.records.partition_batches import partition_of


def test_partitions_of_keys_never_change() -> None:
    """Messages of one key stay in order only as long as this function stays what it is."""
    assert [partition_of(key, 7) for key in (b"", b"a", b"key-1", bytes(256), b"\xff")] == [0, 4, 0, 2, 3]
