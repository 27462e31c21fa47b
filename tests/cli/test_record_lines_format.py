import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.record_lines import Record, compile_format, for_terminal
from headrace.text import times

RECORD = Record(key=b"k", value=b"\xff\x1b", headers=(("h", b"1"), ("n", None)), timestamp=1_000)


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        (r"%t/%p/%o\n", b"flights/3/9\n"),
        (r"%k=%v\t%s\0", b"k=\xff\x1b\t\xff\x1b\0"),
        ("%h", b"h=1,n="),
        ("%T %d", f"1000 {times.local(1_000)}".encode()),
        ("%K %V %S%%", b"1 2 2%"),
        (r"\x41\\", b"A\\"),
        ("", b""),
    ],
)
def test_placeholders(template: str, filled: bytes) -> None:
    assert compile_format(template)("flights", 3, 9, RECORD) == filled


def test_nothing_at_all_has_a_size_of_its_own() -> None:
    assert compile_format("%K %V %T %d %k%v")("t", 0, 0, Record()) == b"-1 -1 -1 - "


@pytest.mark.parametrize("template", ["%x", "%", r"\q", "\\", r"\x4"])
def test_unknown_placeholders_are_named(template: str) -> None:
    with pytest.raises(ValueError, match="found '"):
        compile_format(template)


@given(st.binary())
def test_no_value_reaches_a_terminal_unescaped(value: bytes) -> None:
    shown = for_terminal(compile_format("%v")("t", 0, 0, Record(value=value)))
    assert all(letter.isprintable() or letter in "\n\t" for letter in shown)
