"""Rules for faults: how they are read, for whom they hold, and how often."""

import pytest

from headrace.oci import operations
from headrace.oci.api.registry import OPERATIONS
from headrace.oci.errors import CURSOR_BEHIND, CURSOR_EXPIRED, OciError
from headrace.oci.faults import NONE, OPERATION_NAMES, Faults, InvalidFault, parse
from headrace.oci.settings import OciSettings
from headrace.topics.config_keys import InvalidSetting


def statuses(faults: Faults, operation: str, header: str | None, times: int) -> list[int]:
    found = (faults.of(operation, header) for _ in range(times))
    return [each.error.status if each.error else 200 for each in found]


def test_without_rules_nothing_happens() -> None:
    assert Faults("").of("PutMessages", None) is NONE


def test_a_rule_of_the_setting_holds_for_its_operation_as_often_as_it_says() -> None:
    faults = Faults("PutMessages:429*2, GetMessages:503")
    assert statuses(faults, "PutMessages", None, 4) == [429, 429, 200, 200]
    assert statuses(faults, "GetMessages", None, 3) == [503, 503, 503]
    assert statuses(faults, "CreateCursor", None, 1) == [200]


def test_a_header_counts_the_requests_that_carry_it() -> None:
    faults = Faults("")
    assert statuses(faults, "PutMessages", "500*1", 2) == [500, 200]
    assert statuses(faults, "PutMessages", "500*1 # another", 2) == [500, 200]
    assert statuses(faults, "PutMessages", "500*1", 1) == [200]
    assert statuses(faults, "GetMessages", "PutMessages:500", 1) == [200]


def test_headers_are_not_remembered_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.oci.faults._MOST_TEXTS", 3)
    faults = Faults("")
    for number in range(10):
        faults.of("GetStream", f"500*1 #{number}")
    assert [statuses(faults, "GetStream", f"500*1 #{number}", 1) for number in (9, 0)] == [[200], [500]]


def test_faults_add_up() -> None:
    found = Faults("slow=20").of("PutMessages", "slow=5, entries=3, lost, unreserved=7, 500")
    assert (found.delay_ms, found.entries, found.lost) == (25, 3, True)
    assert found.error is not None
    assert found.error.message == "Trying to commit unreserved partition 7"


@pytest.mark.parametrize(("fault", "message"), [("expired", CURSOR_EXPIRED), ("behind", CURSOR_BEHIND)])
def test_what_the_service_says_about_cursors(fault: str, message: str) -> None:
    error = Faults(fault).of("GetMessages", None).error
    assert error is not None
    assert (error.status, error.code, error.message) == (400, "InvalidParameter", message)


def test_every_status_is_an_error_with_a_code() -> None:
    for status in range(400, 600):
        error = Faults(str(status)).of("GetStream", None).error
        assert error is not None
        assert error.status == status
        assert error.code
    throttled = Faults("429").of("GetStream", None).error
    assert throttled is not None
    assert throttled.headers == {"retry-after": "1"}


@pytest.mark.parametrize(
    "text",
    ["what", "200", "399", "600", "slow", "entries", "429*", "429=x", "a:b:429", "*3", "429 500", "slow=600001",
     "GetMesages:429", "x:429"],
)  # fmt: skip
def test_other_rules_are_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(InvalidFault, match=r"expected|takes a number|at most|there is no (fault|operation)"):
        parse(text)
    with pytest.raises(OciError) as caught:
        Faults("").of("GetStream", text)
    assert caught.value.status == 400
    with pytest.raises(InvalidSetting, match=r"oci\.faults"):
        OciSettings.of({"oci.faults": text})


def test_the_setting_is_checked_and_kept() -> None:
    assert OciSettings.of({"oci.faults": "PutMessages:429*3"}).faults == "PutMessages:429*3"
    assert parse(" , #only a name") == []


def test_a_header_counts_only_where_it_is_enabled() -> None:
    assert not OciSettings.of().faults_header
    faults = Faults("GetStream:500*1", header=False)
    with pytest.raises(OciError, match=r"x-headrace-fault.*--set oci\.faults\.header=true") as caught:
        faults.of("GetStream", "429")
    assert caught.value.status == 400
    assert statuses(faults, "GetStream", None, 2) == [500, 200]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("429#" + "x" * 1_021, "1025 characters"),
        (",".join(["429"] * 17), "17 rules"),
        ("slow=30000,slow=30001", "60000 ms"),
    ],
)
def test_a_header_is_bounded(text: str, told: str) -> None:
    with pytest.raises(OciError, match=told) as caught:
        Faults("").of("GetStream", text)
    assert caught.value.status == 400


def test_a_header_without_a_count_is_not_kept() -> None:
    faults = Faults("")
    faults.of("GetStream", "500*1 #kept")
    for number in range(2_000):
        faults.of("GetStream", f"500#{number}")
    # It would have been forgotten for 1,000 others.
    assert statuses(faults, "GetStream", "500*1 #kept", 1) == [200]


def test_an_unknown_operation_is_reported_with_a_suggestion() -> None:
    with pytest.raises(InvalidFault, match=r"there is no operation GetMesages, did you mean GetMessages$"):
        parse("GetMesages:429")
    operations.load()
    assert OPERATIONS.keys() == OPERATION_NAMES
