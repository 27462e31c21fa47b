import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.groups.configs import Configs, GroupConfig, OffsetReset, ResetStrategy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latest", OffsetReset(ResetStrategy.LATEST)),
        ("earliest", OffsetReset(ResetStrategy.EARLIEST)),
        ("by_duration:PT1H30M", OffsetReset(ResetStrategy.BY_DURATION, 5_400_000)),
        ("by_duration:P2DT3H4M5.678S", OffsetReset(ResetStrategy.BY_DURATION, 183_845_678)),
        ("by_duration:PT0S", OffsetReset(ResetStrategy.BY_DURATION, 0)),
        ("by_duration:pt1.5s", OffsetReset(ResetStrategy.BY_DURATION, 1_500)),
        ("by_duration:PT0.0019S", OffsetReset(ResetStrategy.BY_DURATION, 1)),
    ],
)
def test_a_reset_of_offsets_is_read(text: str, expected: OffsetReset) -> None:
    assert OffsetReset.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "LATEST", "later", "latest:", "earliest:PT1H", "by_duration", "by_duration:", "by_duration:x"),
        *("by_duration:-PT1H", "by_duration:PT-1H", "by_duration:P", "by_duration:PT", "by_duration:P1DT"),
        *("by_duration:P1Y", "by_duration:PT1H ", "by_duration:PT1M1H", f"by_duration:PT{'9' * 400}S"),
    ],
)
def test_another_text_is_no_reset(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        OffsetReset.parse(text)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_duration_is_the_sum_of_its_parts(days: int, hours: int, minutes: int, seconds: int) -> None:
    read = OffsetReset.parse(f"by_duration:P{days}DT{hours}H{minutes}M{seconds}S")
    assert read.duration_ms == (days * 86_400 + hours * 3_600 + minutes * 60 + seconds) * 1_000


def test_without_stored_configurations_all_groups_have_the_default_one() -> None:
    default = GroupConfig(consumer_session_timeout_ms=50_000)
    assert Configs(default).of("a") == default
    assert Configs().of("a") == GroupConfig()
