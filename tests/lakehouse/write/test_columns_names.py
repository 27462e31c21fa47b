"""Names of columns: one for each field, whatever it is called."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.lakehouse.write.columns import LONGEST, assigned, plain_name
from headrace.lakehouse.write.table import COLUMNS

NAMES = st.one_of(
    st.text(max_size=6),
    st.text("aAbB_x05 ;", max_size=9),
    st.sampled_from(
        ["Id", "ID", "id", "a b", "a_x0020_b", "offset", "OFFSET", "value_offset", "value_value_offset", "ß"]
    ),
    st.sampled_from(["", "ID_3843971d", "_x_", "_x005f_", "\u017f", "s", "S", "K", "k", "\x00", "a.b", "`", "\ud800"]),
)


@settings(max_examples=100, deadline=None, database=None)
@given(st.lists(NAMES, unique=True, max_size=12), st.booleans(), st.integers(0, 12))
def test_fields_never_share_a_column(fields: list[str], own: bool, first: int) -> None:
    columns = assigned(fields, (), own=own)
    folded = [name.casefold() for name in columns.values()]
    assert len(set(folded)) == len(fields)
    assert not any(set(name) & set(" ,;{}()\n\t=\x00") or not name for name in columns.values())
    if own:
        assert not set(folded) & {name.casefold() for name in COLUMNS.names}
    # Whatever comes first: a table's own columns are enough to find each field's again.
    before = assigned(fields[:first], (), own=own)
    assert assigned(fields, before.values(), own=own) == columns
    assert assigned(fields[::-1], columns.values(), own=own) == columns


def test_names_are_what_the_guide_says() -> None:
    assert assigned(["Id", "ID", "a b", "offset", "value_offset", ""], ()) == {
        "Id": "Id",
        "ID": "ID_3843971d",
        "a b": "a_x0020_b",
        "offset": "value_offset",
        "value_offset": "value_value_offset",
        "": "_x_",
    }


@pytest.mark.parametrize("name", ["a" * (LONGEST + 1), " " * LONGEST, "value_" * 100_000])
def test_a_name_that_is_too_long_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="has a name of"):
        plain_name(name)
