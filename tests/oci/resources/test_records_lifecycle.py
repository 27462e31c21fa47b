import pytest

from headrace.oci.errors import OciError
from headrace.oci.resources.records import (
    HarnessRecord,
    Phase,
    State,
    WorkRequestRecord,
    check_changeable,
    is_forgotten,
    is_over,
    percent_of,
    state_of,
    status_of,
)

DAY_MS = 86_400_000


def record(state: State | None = None, until_ms: int = 100) -> HarnessRecord:
    phase = Phase(state, until_ms) if state is not None else None
    return HarnessRecord(id="1f", name="h", compartment="c", created_ms=0, phase=phase, version=3)


@pytest.mark.parametrize(
    ("state", "during", "after"),
    [("CREATING", "CREATING", "ACTIVE"), ("UPDATING", "UPDATING", "ACTIVE"), ("DELETING", "DELETING", "DELETED")],
)
def test_a_state_ends_by_itself(state: State, during: str, after: str) -> None:
    assert state_of(record(state), 99) == during
    assert state_of(record(state), 100) == after
    assert state_of(record(), 0) == "ACTIVE"


def test_a_deleted_resource_is_known_for_90_days() -> None:
    deleted = record("DELETING", until_ms=100)
    assert not is_forgotten(deleted, 100 + 90 * DAY_MS - 1)
    assert is_forgotten(deleted, 100 + 90 * DAY_MS)
    assert not is_forgotten(record("CREATING"), 100 + 91 * DAY_MS)
    assert not is_forgotten(record(), 10**15)


@pytest.mark.parametrize("if_match", [None, "1f-3", '"1f-3"', "*"])
def test_what_may_be_changed(if_match: str | None) -> None:
    check_changeable(record("UPDATING"), 100, if_match)


def test_another_etag() -> None:
    with pytest.raises(OciError) as caught:
        check_changeable(record(), 0, "1f-2")
    assert (caught.value.status, caught.value.code) == (412, "NoEtagMatch")


@pytest.mark.parametrize("state", ["CREATING", "UPDATING", "DELETING"])
def test_a_change_under_way(state: State) -> None:
    with pytest.raises(OciError, match=f"is {state}") as caught:
        check_changeable(record(state), 99, None)
    assert (caught.value.status, caught.value.code) == (409, "IncorrectState")


def test_how_far_a_work_request_is() -> None:
    request = WorkRequestRecord(
        id="1", operation="CREATE_STREAM", resources=(), compartment="c", accepted_ms=1_000, finished_ms=2_000
    )
    seen = [(status_of(request, now), percent_of(request, now)) for now in (1_000, 1_100, 1_500)]
    assert seen == [("ACCEPTED", 0.0), ("IN_PROGRESS", 10.0), ("IN_PROGRESS", 50.0)]
    assert (status_of(request, 2_000), percent_of(request, 2_000)) == ("SUCCEEDED", 100.0)
    assert not is_over(request, 2_000 + 7 * DAY_MS - 1)
    assert is_over(request, 2_000 + 7 * DAY_MS)


def test_a_work_request_that_takes_no_time() -> None:
    request = WorkRequestRecord(
        id="1", operation="CREATE_STREAM", resources=(), compartment="c", accepted_ms=1_000, finished_ms=1_000
    )
    assert (status_of(request, 1_000), percent_of(request, 1_000)) == ("SUCCEEDED", 100.0)


def test_a_clock_that_is_set_back_makes_nothing_begin_again() -> None:
    request = WorkRequestRecord(
        id="1", operation="CREATE_STREAM", resources=(), compartment="c", accepted_ms=1_000, finished_ms=2_000
    )
    assert (status_of(request, 999), percent_of(request, 999)) == ("SUCCEEDED", 100.0)
    began = HarnessRecord(id="1f", name="h", compartment="c", created_ms=0, phase=Phase("CREATING", 100, 50), version=3)
    assert [state_of(began, now) for now in (49, 50, 99, 100)] == ["ACTIVE", "CREATING", "CREATING", "ACTIVE"]
