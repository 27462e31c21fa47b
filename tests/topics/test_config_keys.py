import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.topics.config_keys import ConfigKey, ConfigType, suggestion, text_of


def key(kind: ConfigType, **more: object) -> ConfigKey:
    return ConfigKey(name="k", type=kind, default=None, doc="", **more)  # type: ignore[arg-type]


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_long_is_read_as_it_is_written(number: int) -> None:
    assert key(ConfigType.LONG).parse(text_of(number)) == number


@pytest.mark.parametrize("text", ["", "x", "1.5", "1_000", "0x10", "\u0661", "1e3", "--1"])
def test_only_plain_digits_are_a_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match="expected a whole number"):
        key(ConfigType.LONG).parse(text)


@pytest.mark.parametrize(
    ("kind", "number"), [(ConfigType.INT, 2**31), (ConfigType.SHORT, -(2**15) - 1), (ConfigType.LONG, 2**63)]
)
def test_a_number_must_fit_its_type(kind: ConfigType, number: int) -> None:
    with pytest.raises(ValueError, match="expected a number from"):
        key(kind).parse(str(number))


def test_bounds_are_inclusive() -> None:
    bounded = key(ConfigType.DOUBLE, minimum=0, maximum=1)
    assert [bounded.parse("0"), bounded.parse("1"), bounded.parse(".5")] == [0, 1, 0.5]
    with pytest.raises(ValueError, match="at most 1"):
        bounded.parse("1.01")
    with pytest.raises(ValueError, match="at least 0"):
        bounded.parse("-0.1")


@pytest.mark.parametrize("text", ["nan", "inf", "1,5", ""])
def test_a_double_is_a_finite_decimal(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number"):
        key(ConfigType.DOUBLE).parse(text)


def test_booleans_take_any_case_and_nothing_else() -> None:
    assert key(ConfigType.BOOLEAN).parse(" TRUE ") is True
    assert key(ConfigType.BOOLEAN).parse("false") is False
    with pytest.raises(ValueError, match="true or false"):
        key(ConfigType.BOOLEAN).parse("yes")


def test_every_item_of_a_list_is_checked() -> None:
    policies = key(ConfigType.LIST, choices=("delete",), refused={"compact": "not yet"})
    assert policies.parse("delete") == "delete"
    with pytest.raises(ValueError, match="not yet"):
        policies.parse("delete, compact")
    with pytest.raises(ValueError, match="String must be one of: delete"):
        policies.parse("x")


def test_a_suggestion_is_near_or_absent() -> None:
    assert suggestion("num.partition", ["num.partitions", "node.id"]) == "did you mean num.partitions?"
    assert suggestion("zzz", ["num.partitions"]) == ""
