"""Flights and mean departure delay by carrier and by month, counted in whole numbers so that they agree or differ."""

from collections.abc import Iterable, Mapping

import msgspec

Group = tuple[str | None, int | None]
"""A carrier and a month; None stands for all of them: (None, None) is the whole."""


class Figure(msgspec.Struct, frozen=True, array_like=True):
    """What is counted of one group of flights."""

    flights: int
    departed: int
    """Those that have a departure delay."""
    delay: int
    """Minutes, all together; early departures count below zero."""

    @property
    def mean(self) -> float | None:
        """Mean departure delay in minutes; None when nothing departed."""
        return self.delay / self.departed if self.departed else None

    def __add__(self, other: "Figure") -> "Figure":
        return Figure(self.flights + other.flights, self.departed + other.departed, self.delay + other.delay)


NOTHING = Figure(0, 0, 0)
WHOLE: Group = (None, None)

Figures = Mapping[Group, Figure]
"""Every (carrier, month), every carrier, every month and the whole: what SQL calls a cube."""


class Tally:
    """Counts flights one by one."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, int], list[int]] = {}

    def add(self, carrier: str, month: int, delay: int | None) -> None:
        """Count a flight; the delay is in minutes, None when it was cancelled."""
        cell = self._cells.setdefault((carrier, month), [0, 0, 0])
        cell[0] += 1
        if delay is not None:
            cell[1] += 1
            cell[2] += delay

    def figures(self) -> dict[Group, Figure]:
        """All figures of what was counted so far."""
        return cube({cell: Figure(*counted) for cell, counted in self._cells.items()})


def cube(cells: Mapping[tuple[str, int], Figure]) -> dict[Group, Figure]:
    """Add up the cells by carrier, by month and in all."""
    figures: dict[Group, Figure] = {}
    for (carrier, month), figure in cells.items():
        groups: tuple[Group, ...] = ((carrier, month), (carrier, None), (None, month), WHOLE)
        for group in groups:
            figures[group] = figures.get(group, NOTHING) + figure
    return figures


def carriers(figures: Iterable[Group]) -> list[str]:
    """The carriers, in alphabetical order."""
    return sorted({carrier for carrier, _ in figures if carrier is not None})


def months(figures: Iterable[Group]) -> list[int]:
    """The months, 1 to 12."""
    return sorted({month for _, month in figures if month is not None})


def compare(expected: Figures, found: Figures) -> list[str]:
    """What differs, one line per group, the whole first; empty when every figure agrees."""
    groups = sorted(expected.keys() | found.keys(), key=lambda group: (group[0] or "", group[1] or 0))
    return [
        f"{describe(group)}: expected {_told(expected.get(group))}, found {_told(found.get(group))}"
        for group in groups
        if expected.get(group) != found.get(group)
    ]


def describe(group: Group) -> str:
    """A group in words: `UA in month 3`."""
    carrier, month = group
    if carrier is None:
        return "all flights" if month is None else f"month {month}"
    return carrier if month is None else f"{carrier} in month {month}"


def _told(figure: Figure | None) -> str:
    if figure is None:
        return "nothing"
    return f"{figure.flights:,} flights, {figure.departed:,} departed, {figure.delay:,} minutes late"
