import contextlib
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.text.times import clock, duration, instant, local


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A zone with a name, an offset and a summer."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_times_are_local_and_say_their_zone() -> None:
    assert local(1_700_000_000_123) == "2023-11-14 23:13:20.123+01:00"
    assert local(1_690_000_000_000) == "2023-07-22 06:26:40.000+02:00"
    assert clock()[-6:] in {"+01:00", "+02:00"}


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_timestamp_that_a_record_can_have_is_shown(milliseconds: int) -> None:
    assert local(milliseconds)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("90s", 90_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("250ms", 250), ("1.5h", 5_400_000),
     ("PT1H30M", 5_400_000), ("P1D", 86_400_000), ("P1DT1S", 86_401_000), ("pt0.5s", 500)],
)  # fmt: skip
def test_durations(text: str, milliseconds: int) -> None:
    assert duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "P", "PT", "1", "h", "1y", "1h 30m", "-1h", "1h-2m", "P1H"])
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        duration(text)


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("10m", 1_700_000_000_000 - 600_000),
        ("@1690000000000", 1_690_000_000_000),
        ("2023-11-14T23:13:20", 1_700_000_000_000),
        ("2023-11-14 23:13:20.123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20+00:00", 1_700_000_000_000),
        ("2023-11-14", 1_699_916_400_000),
    ],
)
def test_instants_are_local_where_no_zone_is_said(text: str, milliseconds: int) -> None:
    assert instant(text, 1_700_000_000_000) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "yesterday", "@", "@-1", "2023-13-01", "9000000d", "1969-01-01T00:00Z", "@" + "9" * 30]
)
def test_invalid_instants(text: str) -> None:
    with pytest.raises(ValueError, match="expected a"):
        instant(text, 1_700_000_000_000)


@given(st.text())
def test_no_text_makes_it_fail_otherwise(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert instant(text, 1_700_000_000_000) >= 0
