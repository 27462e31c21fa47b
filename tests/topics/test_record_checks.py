"""Checks of single records: which are rejected, and what the error says."""

import pytest

from headrace.records.build import build
from headrace.records.errors import BatchTooLarge, CorruptBatch
from headrace.topics.errors import InvalidRecords
from headrace.topics.record_checks import MOST_LISTED, RecordChecks, check, checks_of

KEYS = RecordChecks(key=True)
MESSAGE = "Compacted topic cannot accept message without key in topic partition t-3."


def made(keys: list[bytes | None], codec: int = 0) -> bytearray:
    return build([(key, b"value", 5, ()) for key in keys], codec=codec)


def test_a_configuration_without_checks_has_none() -> None:
    assert checks_of(compacted=False) is None
    assert checks_of(compacted=True) == KEYS


@pytest.mark.parametrize("codec", range(5))
def test_records_with_keys_are_accepted_and_the_decompressed_size_returned(codec: int) -> None:
    plain = made([b"k", b""])
    assert check(KEYS, "t-3", made([b"k", b""], codec)) == len(plain) - 61


@pytest.mark.parametrize("codec", range(5))
def test_records_without_key_are_listed_by_their_index(codec: int) -> None:
    with pytest.raises(InvalidRecords) as caught:
        check(KEYS, "t-3", made([b"a", None, b"", None], codec))
    assert caught.value.reasons == {1: MESSAGE, 3: MESSAGE}
    assert "rejected due to 2 record errors in total" in str(caught.value)
    assert f"record 1: {MESSAGE}" in str(caught.value)


def test_the_list_and_the_message_are_bounded() -> None:
    with pytest.raises(InvalidRecords) as caught:
        check(KEYS, "t-3", made([None] * (MOST_LISTED + 50)))
    assert sorted(caught.value.reasons) == list(range(MOST_LISTED))
    assert f"due to {MOST_LISTED + 50} record errors" in str(caught.value)
    assert str(caught.value).count(MESSAGE) == 3


def test_a_batch_that_decompresses_to_more_than_the_limit_is_not_read() -> None:
    with pytest.raises(BatchTooLarge):
        check(KEYS, "t-3", made([b"k" * 5_000], codec=4), limit=4_000)


def test_records_that_cannot_be_read() -> None:
    damaged = made([b"k" * 50, b"k"])
    damaged[61] = 0xFF
    with pytest.raises(CorruptBatch):
        check(KEYS, "t-3", damaged)
