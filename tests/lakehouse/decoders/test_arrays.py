"""Times of RFC 3339 as microseconds: those that the RFC has, and no others."""

import pytest

from headrace.lakehouse.decoders.arrays import microseconds

NOON = 1_767_355_200_000_000
MINUTE = 60_000_000


@pytest.mark.parametrize(
    ("zone", "minutes"),
    [
        ("Z", 0),
        ("z", 0),
        ("+00:00", 0),
        ("-00:00", 0),
        ("+00:59", 59),
        ("-00:59", -59),
        ("+23:59", 1439),
        ("-19:30", -1170),
    ],
)
def test_offsets(zone: str, minutes: int) -> None:
    assert microseconds(f"2026-01-02T12:00:00{zone}") == NOON - minutes * MINUTE


@pytest.mark.parametrize(
    "zone",
    [
        *("+00:60", "+00:99", "-00:60", "+23:60", "+24:00", "-24:00", "+30:00", "+99:99", "+0:00", "+00:0", "+0000"),
        *(
            "+00",
            "",
            "+00:00:00",
            "+00:00Z",
            " Z",
            "\u066000:00",
            "+\u0660\u0660:00",
            "+00:\u0660\u0660",
            "\u221200:00",
        ),
    ],
)
def test_offsets_that_there_are_not(zone: str) -> None:
    with pytest.raises(ValueError, match=r"is no time of RFC 3339"):
        microseconds(f"2026-01-02T12:00:00{zone}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-01-02T24:00:00Z", "is no time of RFC 3339"),
        ("2026-01-02T12:60:00Z", "is no time of RFC 3339"),
        ("2026-01-02T23:59:60Z", "is no time that there is"),
        ("2026-02-30T12:00:00Z", "is no time that there is"),
        ("0000-01-01T00:00:00Z", "is no time that there is"),
    ],
)
def test_times_that_there_are_not(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        microseconds(text)
