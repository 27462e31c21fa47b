"""Figures of two servers from one run."""

import pytest
from bench.figures import HEADRACE, KAFKA, Figures, figures_table
from bench.load import LoadFailed


def test_a_row_has_medians_spreads_and_their_ratio() -> None:
    figures = Figures()
    for ours, theirs in ((30.0, 10.0), (10.0, 20.0), (20.0, 5.0)):
        figures.add("rate", HEADRACE, ours)
        figures.add("rate", KAFKA, theirs)
    row = figures.row("rate", "MB/s", ">= 1")
    assert row == ["rate", "MB/s", 20.0, "10.0 to 30.0", 10.0, "5.00 to 20.0", 2.0, ">= 1"]
    assert "| rate   | MB/s |     20.0 |" in figures_table([row])


def test_what_was_not_measured_stays_empty() -> None:
    figures = Figures()
    figures.add("rate", HEADRACE, 1_234.0)
    assert figures.row("rate", "MB/s") == ["rate", "MB/s", 1_234.0, "1,234 to 1,234", None, "-", None, ""]


def test_a_share_is_of_one_server() -> None:
    figures = Figures()
    for server, value, yardstick in ((HEADRACE, 9.0, 10.0), (KAFKA, 1.0, 2.0)):
        figures.add("with", server, value)
        figures.add("without", server, yardstick)
    assert figures.share("both", "with", "without") == ["both", "ratio", 0.9, "", 0.5, "", None, ""]


def test_servers_take_turns_after_a_round_to_warm_up(capsys: pytest.CaptureFixture[str]) -> None:
    figures, seen = Figures(), []

    def turn(name: str, number: int) -> None:
        seen.append(name + str(number))
        if (name, number) == ("b", 0):
            raise LoadFailed("records were lost")

    figures.in_turns({name: lambda number, name=name: turn(name, number) for name in "ab"}, 2)  # type: ignore[misc]
    assert seen == ["b-1", "a-1", "a0", "b0", "b1", "a1"]
    assert figures.failed
    assert "failed: b, round 0: records were lost" in capsys.readouterr().err
