import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli import output

LONG = "a-client-of-the-night-shift-7f0c2b1e-5d7a-4f43-9d6a-0a4f5d1f7a11"


def table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, *rows: list[object]) -> str:
    """A table of the widest kind there is, on a terminal of that width."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    output.print_table(["topic", ">partition", ">position", ">log end", ">lag", "member"], rows)
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
@pytest.mark.parametrize("size", [1, 5, 13])
def test_a_table_fits_and_loses_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, size: int
) -> None:
    number = 10 ** (size - 1)
    rows: list[list[object]] = [["flights-of-the-year", part, number, number + 1, None, LONG] for part in range(3)]
    shown = table(capsys, monkeypatch, width, *rows)
    assert max(map(len, shown.splitlines())) <= width
    if size == 13:
        assert shown.count(str(number)) == shown.count(str(number + 1)) == 3
    without_blanks = "".join(shown.split())
    assert all(letter in without_blanks for letter in ("flights", "night", "7a11"))


def test_a_narrow_terminal_gets_one_field_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = table(capsys, monkeypatch, 60, ["flights", 0, 10**12, 10**12, 10**12, LONG], ["x", 1, 2, 3, 4, "m"])
    assert shown.splitlines()[:3] == ["topic      flights", "partition  0", "position   1000000000000"]
    assert shown.splitlines()[-1] == "member     m"


def test_text_is_folded_between_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    output.print_table(["check", "found"], [["clock", "not synchronized as far as the kernel knows " + "x" * 50]])
    found = [line[7:] for line in capsys.readouterr().out.splitlines()[2:]]
    assert found[:2] == ["not synchronized as far as the", "kernel knows"]
    assert "".join(found[2:]) == "x" * 50


@given(
    st.lists(st.tuples(st.integers(1, 90), st.booleans()), min_size=1, max_size=8),
    st.integers(60, 200),
)
def test_columns_of_text_give_way_and_numbers_never(columns: list[tuple[int, bool]], room: int) -> None:
    natural, right = [width for width, _ in columns], [is_right for _, is_right in columns]
    widths = output.fit(natural, right, room)
    if widths is None:
        least = sum(width if is_right else min(width, 12) for width, is_right in columns)
        assert least > room
        return
    assert sum(widths) <= max(room, sum(natural) if sum(natural) <= room else 0)
    for width, before, is_right in zip(widths, natural, right, strict=True):
        assert width == before if is_right else min(before, 12) <= width <= before


def test_into_a_pipe_a_row_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["topic", "member"], [["flights", LONG * 20]])
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_terminal_control_sequences_are_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = table(capsys, monkeypatch, 100, ["\x1b[2J\u202eevil\x9b31m", 0, 1, 2, 3, "a\nb\ud800\u200b"])
    assert shown.splitlines()[2].split() == [r"\x1b[2J\u202eevil\x9b31m", "0", "1", "2", "3", r"a\nb\ud800\u200b"]
    output.print_json({"name": "\x1b[2J\u202eü\x9b\x7f\ud800😀"})
    assert capsys.readouterr().out == '{\n  "name": "\\u001b[2J\\u202eü\\u009b\\u007f\\ud800😀"\n}\n'


def test_a_cell_of_a_megabyte_is_cut_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = table(capsys, monkeypatch, 80, ["x" * 1_000_000, 0, 1, 2, 3, "m"])
    assert len(shown) < 5_000
    assert "(1,000,000" in shown
