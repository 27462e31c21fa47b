import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from headrace.demo import report
from headrace.demo.flights import WHOLE, Figure, Tally
from headrace.demo.messages import Extent, Queried


def figures(*delays: int | None) -> dict[tuple[str | None, int | None], Figure]:
    tally = Tally()
    for delay in delays:
        tally.add("UA", 1, delay)
    return tally.figures()


def named(*delays: int | None) -> list[tuple[str | None, int | None, Figure]]:
    return [(carrier and "United", month, figure) for (carrier, month), figure in figures(*delays).items()]


def outcome(**changes: Any) -> report.Outcome:
    """Three flights in two partitions, all well."""
    rows = [(*group, figure) for group, figure in figures(10, None, 20).items()]
    extents = {0: Extent(2, 2, 0, 1, 30), 4: Extent(1, 1, 0, 0, 12)}
    table = Queried(extents=extents, figures=rows, version=3, files=2, named=named(10, None, 20))
    good = report.Outcome(
        package=figures(10, None, 20),
        airlines={"UA": "United"},
        readers=figures(10, None, 20),
        acknowledged=3,
        checksum=42,
        unread=[],
        again=1,
        lags={"flights-readers": 0, "flights-archive": 0},
        table=table,
        cancelled=figures(None),
    )
    of_table = {name: changes.pop(name) for name in ("extents", "figures", "named") if name in changes}
    return msgspec.structs.replace(good, table=msgspec.structs.replace(table, **of_table), **changes)


def failing(found: report.Outcome) -> list[str]:
    return [check.claim for check in report.check(found) if not check.holds]


def test_all_well() -> None:
    assert failing(outcome()) == []


@pytest.mark.parametrize(
    ("changes", "claims"),
    [
        ({"acknowledged": 2}, ["acknowledged"]),
        ({"unread": ["partition 0: 1 records were never read"]}, ["read every record"]),
        ({"lags": {"flights-readers": 0, "flights-archive": 1}}, ["no lag"]),
        ({"readers": figures(10, None, 21)}, ["the readers' figures"]),
        ({"readers": figures(10, 0, 20)}, ["the readers' figures"]),
        ({"checksum": 41}, ["CRC-32"]),
        ({"extents": {0: Extent(3, 2, 0, 1, 30), 4: Extent(1, 1, 0, 0, 12)}}, ["3 rows", "exactly once"]),
        ({"extents": {0: Extent(2, 2, 1, 2, 30), 4: Extent(1, 1, 0, 0, 12)}}, ["exactly once"]),
        ({"extents": {0: Extent(3, 2, 0, 2, 42)}}, ["exactly once"]),
        ({"extents": {}, "figures": []}, ["3 rows", "exactly once", "CRC-32", "the table's figures"]),
        ({"figures": [(None, None, Figure(3, 2, 31))]}, ["the table's figures"]),
        ({"named": named(10, 20)}, ["the other table"]),
        ({"cancelled": {}}, ["the topic flights-cancelled"]),
        ({"cancelled": figures(None, None)}, ["the topic flights-cancelled"]),
    ],
)
def test_whatever_is_wrong_is_found(changes: dict[str, Any], claims: list[str]) -> None:
    found = failing(outcome(**changes))
    assert len(found) == len(claims)
    assert all(part in claim for part, claim in zip(claims, found, strict=True))


def shown(found: report.Outcome) -> str:
    text = io.StringIO()
    report.show(Console(file=text, width=200), found, report.check(found))
    return text.getvalue()


def test_figures_are_next_to_each_other() -> None:
    text = shown(outcome())
    assert "UA              3         3         3      15.0000      15.0000      15.0000   agrees" in text
    assert "DIFFERS" not in text


def test_a_difference_is_shown_in_its_line_and_explained_below() -> None:
    wrong = [(*group, Figure(4, 3, 31)) for group in (("UA", 1), ("UA", None), (None, 1), WHOLE)]
    text = shown(outcome(figures=wrong))
    assert "UA              3         3         4      15.0000      15.0000      10.3333   DIFFERS" in text
    assert "UA in month 1: expected 3 flights, 2 departed, 30 minutes late, found 4 flights" in text


def test_what_is_missing_altogether_is_shown_as_such() -> None:
    text = shown(outcome(figures=[]))
    assert "UA              3         3         -      15.0000      15.0000            -   DIFFERS" in text
    assert "found nothing" in text
