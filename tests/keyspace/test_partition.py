from headrace.keyspace import partition


def test_a_partition_nobody_opened_is_empty() -> None:
    assert partition.extent([None, None]) == (0, 0)


def test_log_start_and_end_are_whole_up_to_two_to_the_53() -> None:
    assert partition.extent([b"3", b"9007199254740991"]) == (3, 2**53 - 1)
