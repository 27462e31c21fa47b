"""Terminals get only text, and programs the exact value, of any data from clients."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.text.escaping import json_text, quoted, shown

EVIL = ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r", "\x7f", "\u202e", "\u2066", "\u200b", "\ufeff", "\ud800"]
# Of the halves of surrogate pairs only one: two that fit are one letter in JSON.
anything = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("".join(EVIL)))


@given(anything | st.binary())
def test_what_is_shown_prints(data: str | bytes) -> None:
    assert shown(data).isprintable()
    assert shown(data, 5).isprintable()
    assert len(shown(data, 5)) <= 5 * len("\\U0010ffff") + len("… (1,000,000 characters)")


@pytest.mark.parametrize("letter", EVIL)
def test_control_sequences_are_escaped(letter: str) -> None:
    assert "\\" in shown(f"a{letter}b")
    assert letter not in json_text({"name": letter})


def test_letters_of_every_script_stay() -> None:
    assert shown("Zürich 東京 תל אביב 😀") == "Zürich 東京 תל אביב 😀"
    assert shown(None) == "-"


def test_long_data_is_cut_and_says_how_much_there_is() -> None:
    assert shown("x" * 1_000_000, 3) == "xxx… (1,000,000 characters)"
    assert shown(b"\xff" * 1_000_000, 8) == r"\xff\xff… (1,000,000 bytes)"
    assert shown("xxx", 3) == "xxx"
    assert len(quoted("x" * 1_000_000)) < 300


@given(st.recursive(st.none() | anything, lambda inner: st.lists(inner) | st.dictionaries(anything, inner)))
def test_a_program_gets_the_same_value(document: object) -> None:
    for indent in (None, 2):
        text = json_text(document, indent)
        assert json.loads(text) == document
        assert all(letter.isprintable() or letter == "\n" for letter in text)
