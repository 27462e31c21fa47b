import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.topics.errors import InvalidTopicName
from headrace.topics.model import MAX_LENGTH, check_name

LEGAL = "abcxyzABCXYZ0189._-"


@given(st.text(LEGAL, min_size=1, max_size=MAX_LENGTH).filter(lambda name: name not in {".", ".."}))
def test_legal_characters_make_a_name(name: str) -> None:
    check_name(name)


@given(st.text(LEGAL, max_size=5), st.characters(exclude_characters=LEGAL), st.text(LEGAL, max_size=5))
def test_one_character_outside_the_set_spoils_a_name(before: str, wrong: str, after: str) -> None:
    if wrong.isascii() and (wrong.isalnum() or wrong in "._-"):
        check_name(before + wrong + after)
    else:
        with pytest.raises(InvalidTopicName, match="character other than"):
            check_name(before + wrong + after)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("", "empty"), (".", "may not be called"), ("..", "may not be called"), ("a" * 250, "at most 249")],
)
def test_a_refusal_says_which_rule_is_broken(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopicName, match=reason):
        check_name(name)


def test_a_name_may_end_in_no_line_break() -> None:
    with pytest.raises(InvalidTopicName):
        check_name("flights\n")
