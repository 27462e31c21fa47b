"""Rates: never more than a second's worth ahead, and a client that waits as asked is served."""

import pytest

from headrace.oci import operations
from headrace.oci.api.registry import OPERATIONS
from headrace.oci.errors import OciError
from headrace.oci.limits import CALLS, READS, WRITTEN_BYTES, Limits, kind_of

NOW = 1_700_000_000_000


def test_a_partition_takes_a_megabyte_a_second() -> None:
    limits = Limits()
    assert limits.write(b"s", 0, 600_000, NOW) == 0
    assert limits.write(b"s", 0, 600_000, NOW) == 0
    assert limits.write(b"s", 0, 1, NOW) == 201
    assert limits.write(b"s", 1, WRITTEN_BYTES, NOW) == 0
    assert limits.write(b"s", 0, 1, NOW + 201) == 0


def test_readers_of_one_partition_and_group_share_five_reads() -> None:
    limits = Limits()
    for _ in range(READS):
        limits.read(b"s", 0, NOW)
        limits.read(b"s", ("g", "a"), NOW)
    with pytest.raises(OciError) as caught:
        limits.read(b"s", 0, NOW)
    assert caught.value.status == 429
    assert caught.value.code == "TooManyRequests"
    assert caught.value.message.endswith("next request can be made in 1 ms")
    assert caught.value.headers == {"retry-after": "1"}
    limits.read(b"s", 0, NOW + 200)
    limits.read(b"other", 0, NOW)


def test_calls_count_by_kind_and_tenancy() -> None:
    limits = Limits()
    for _ in range(CALLS):
        limits.call("GetStream", "a", NOW)
    with pytest.raises(OciError):
        limits.call("ListStreams", "a", NOW)
    limits.call("ListStreams", "b", NOW)
    limits.call("CreateStream", "a", NOW)
    for _ in range(100):
        limits.call("GetWorkRequest", "a", NOW)
        limits.call("PutMessages", "a", NOW)


def test_every_operation_has_a_kind_or_none_on_purpose() -> None:
    operations.load()
    assert {name for name in OPERATIONS if kind_of(name) is None} == {
        "PutMessages", "GetMessages", "GetWorkRequest", "ListWorkRequests", "ListWorkRequestErrors",
        "ListWorkRequestLogs",
    }  # fmt: skip
    assert kind_of("ChangeStreamPoolCompartment") == kind_of("UpdateStreamPool") == "update StreamPool"
    assert kind_of("ListConnectHarnesses") == kind_of("GetConnectHarness") == "read ConnectHarness"


def test_idle_buckets_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.oci.limits._MOST_BUCKETS", 10)
    limits = Limits()
    for number in range(30):
        limits.read(b"s", number, NOW + number * 10_000)
    assert len(limits._buckets) <= 10  # noqa: SLF001  # nobody may notice that a bucket was forgotten
