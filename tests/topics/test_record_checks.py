"""Checks of single records: which are rejected, and what the error says."""

from collections.abc import Iterable

import pytest

from headrace.records.build import build
from headrace.records.errors import BatchTooLarge, CorruptBatch
from headrace.topics.errors import InvalidRecords
from headrace.topics.record_checks import (
    DISABLED,
    MOST_LISTED,
    MOST_SCHEMAS,
    RecordChecks,
    SubjectNameStrategy,
    checks_of,
    faults,
    rejected,
    scan,
)

KEYS = RecordChecks(key=True)
TOPIC, RECORD, TOPIC_RECORD = SubjectNameStrategy
MESSAGE = "Compacted topic cannot accept message without key in topic partition t-3."


def made(keys: list[bytes | None], codec: int = 0) -> bytearray:
    return build([(key, b"value", 5, ()) for key in keys], codec=codec)


class Registry:
    """Subjects by reference, and names by reference."""

    def __init__(self, subjects: dict[bytes, str], names: dict[bytes, str] | None = None) -> None:
        self.subjects = subjects
        self.found = names or {}

    def is_registered(self, reference: bytes, subject: str) -> bool:
        return self.subjects.get(reference) == subject

    def names(self, reference: bytes) -> frozenset[str]:
        return frozenset(self.found.get(reference, "").split())

    async def learn(self, references: Iterable[bytes], *, names: bool) -> None:
        raise AssertionError("nothing here needs to be learned")


def by_id(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def checked(checks: RecordChecks, batch: bytearray, registry: Registry | None = None) -> int:
    """The size of an accepted batch."""
    scanned = scan(checks, batch)
    found = faults(checks, "t", 3, scanned, registry)
    if found.total:
        raise rejected(found)
    return scanned.size


def values(*found: bytes | None, codec: int = 0) -> bytearray:
    return build([(b"k", value, 5, ()) for value in found], codec=codec)


def test_a_configuration_without_checks_has_none() -> None:
    assert checks_of(compacted=False) is None
    assert checks_of(compacted=True) == KEYS


@pytest.mark.parametrize("codec", range(5))
def test_records_with_keys_are_accepted_and_the_decompressed_size_returned(codec: int) -> None:
    plain = made([b"k", b""])
    assert checked(KEYS, made([b"k", b""], codec)) == len(plain) - 61


@pytest.mark.parametrize("codec", range(5))
def test_records_without_key_are_listed_by_their_index(codec: int) -> None:
    with pytest.raises(InvalidRecords) as caught:
        checked(KEYS, made([b"a", None, b"", None], codec))
    assert caught.value.reasons == {1: MESSAGE, 3: MESSAGE}
    assert "rejected due to 2 record errors in total" in str(caught.value)
    assert f"record 1: {MESSAGE}" in str(caught.value)


def test_the_list_and_the_message_are_bounded() -> None:
    with pytest.raises(InvalidRecords) as caught:
        checked(KEYS, made([None] * (MOST_LISTED + 50)))
    assert sorted(caught.value.reasons) == list(range(MOST_LISTED))
    assert f"due to {MOST_LISTED + 50} record errors" in str(caught.value)
    assert str(caught.value).count(MESSAGE) == 3


def test_a_batch_that_decompresses_to_more_than_the_limit_is_not_read() -> None:
    with pytest.raises(BatchTooLarge):
        scan(KEYS, made([b"k" * 5_000], codec=4), limit=4_000)


def test_records_that_cannot_be_read() -> None:
    damaged = made([b"k" * 50, b"k"])
    damaged[61] = 0xFF
    with pytest.raises(CorruptBatch):
        checked(KEYS, damaged)


def test_values_with_a_schema_of_the_subject_are_accepted_and_tombstones_too() -> None:
    checks = checks_of(compacted=False, value=TOPIC)
    assert checks is not None
    assert checks.key is False
    registry = Registry({by_id(7): "t-value", by_id(8): "other-value"})
    assert checked(checks, values(by_id(7) + b"x", None, by_id(7)), registry)
    with pytest.raises(InvalidRecords) as caught:
        checked(checks, values(by_id(7), by_id(8), b"", b"\0\0\0\0", b"{}", by_id(9), by_id(8)), registry)
    assert "due to 6 record errors in total" in str(caught.value)
    assert {index: reason[:40] for index, reason in caught.value.reasons.items()} == {
        1: "The schema with ID 8 of the value is not",
        2: "The value has no valid schema ID, which ",
        3: "The value has no valid schema ID, which ",
        4: "The value has no valid schema ID, which ",
        5: "The schema with ID 9 of the value is not",
    }


@pytest.mark.parametrize(
    ("strategy", "subject", "where"),
    [
        (TOPIC, "t-key", "subject t-key"),
        (RECORD, "shop.Order", "the subject of its record's name"),
        (TOPIC_RECORD, "t-shop.Order", "subject t- and its record's name"),
    ],
)
def test_the_strategy_names_the_subject(strategy: SubjectNameStrategy, subject: str, where: str) -> None:
    checks = checks_of(compacted=False, key=strategy)
    assert checks is not None
    assert checks.needs_names == (strategy is not TOPIC)
    batch = build([(by_id(7) + b"key", b"plain", 5, ())])
    names = {by_id(7): "shop.Other shop.Order"}
    assert checked(checks, batch, Registry({by_id(7): subject}, names))
    for wrong in (Registry({by_id(7): "t-value"}, names), Registry({by_id(8): subject}, names)):
        with pytest.raises(InvalidRecords, match=where):
            checked(checks, batch, wrong)


def test_headers_name_schemas_by_guid_or_id() -> None:
    checks = checks_of(compacted=False, value=TOPIC)
    assert checks is not None
    guid = b"\1" + bytes(range(16))

    def batch(*headers: bytes | None) -> bytearray:
        return build([(b"k", b"plain", 5, tuple(("__value_schema_id", each) for each in headers))])

    registry = Registry({guid: "t-value", by_id(7): "t-value"})
    for good in ((guid,), (guid + b"\0",), (by_id(7),), (None, guid), (guid, b"")):
        assert checked(checks, batch(*good), registry)
    for bad in ((), (None,), (b"",), (guid[:16],), (b"\2" + guid[1:],)):
        with pytest.raises(InvalidRecords, match="header __value_schema_id"):
            checked(checks, batch(*bad), registry)
    other = b"\1" + bytes(16)
    with pytest.raises(InvalidRecords, match="GUID 00000000-0000-0000-0000-000000000000"):
        checked(checks, batch(other), registry)


def test_unknown_schemas_are_listed_for_a_look_at_other_brokers() -> None:
    checks = checks_of(compacted=True, value=TOPIC)
    assert checks is not None
    scanned = scan(checks, values(by_id(1), by_id(2), by_id(1), by_id(3)))
    found = faults(checks, "t", 0, scanned, Registry({by_id(2): "t-value"}))
    assert (found.unknown, found.total, sorted(found.reasons)) == ([by_id(1), by_id(3)], 3, [0, 3])


def test_a_batch_has_a_limited_number_of_schemas() -> None:
    checks = checks_of(compacted=False, value=TOPIC)
    assert checks is not None
    registry = Registry({by_id(number): "t-value" for number in range(1, 200)})
    assert checked(checks, values(*map(by_id, range(1, MOST_SCHEMAS + 1))), registry)
    with pytest.raises(InvalidRecords, match=f"more than {MOST_SCHEMAS} schemas") as caught:
        checked(checks, values(*map(by_id, range(1, MOST_SCHEMAS + 3))), registry)
    assert list(caught.value.reasons) == [MOST_SCHEMAS]


def test_without_a_registry_nothing_is_accepted() -> None:
    checks = checks_of(compacted=False, value=TOPIC)
    assert checks is not None
    with pytest.raises(InvalidRecords, match=r"set schema\.registry\.enable=true"):
        checked(checks, values(by_id(1)))
    assert faults(checks, "t", 0, scan(checks, values(by_id(1))), None).reasons == {0: DISABLED}
