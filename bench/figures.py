"""Figures of Headrace and of Apache Kafka from the same run: rounds in turns, medians with the spread, and ratios."""

import contextlib
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping

import msgspec

from bench.load import LoadFailed
from bench.table import Cell, ratio, table

HEADRACE, KAFKA = "Headrace", "Kafka"
HEAD = ("figure", "unit", HEADRACE, "spread", KAFKA, "spread", "ratio", "required")


class Figures(msgspec.Struct):
    """What was measured, by figure and server, one value for each round."""

    values: dict[tuple[str, str], list[float]] = msgspec.field(default_factory=dict)
    failed: bool = False
    """Whether a load failed: its values are missing, the others count."""

    def add(self, figure: str, server: str, value: float) -> None:
        self.values.setdefault((figure, server), []).append(value)

    def median(self, figure: str, server: str) -> float | None:
        """None if it was not measured."""
        found = self.values.get((figure, server))
        return statistics.median(found) if found else None

    def spread(self, figure: str, server: str) -> str:
        """The lowest and the highest value."""
        found = self.values.get((figure, server))
        return f"{_short(min(found))} to {_short(max(found))}" if found else "-"

    def row(self, figure: str, unit: str, required: str = "") -> list[Cell]:
        """Both servers, and the ratio of the first to the second."""
        ours, theirs = (self.median(figure, name) for name in (HEADRACE, KAFKA))
        return [
            *(figure, unit, ours, self.spread(figure, HEADRACE), theirs, self.spread(figure, KAFKA)),
            *(ratio(ours, theirs), required),
        ]  # fmt: skip

    def share(self, name: str, figure: str, yardstick: str, required: str = "") -> list[Cell]:
        """Of each server, the ratio of a figure to another one."""
        ours, theirs = (
            ratio(self.median(figure, server), self.median(yardstick, server)) for server in (HEADRACE, KAFKA)
        )
        return [name, "ratio", ours, "", theirs, "", None, required]

    def in_turns(self, turns: Mapping[str, Callable[[int], None]], rounds: int, *, warm_up: bool = True) -> None:
        """Let servers take turns, each round in the other order. The first round is number -1, and warms up."""
        for number in range(-warm_up, rounds):
            names = list(turns)[:: -1 if number % 2 else 1]
            for name in names:
                with self._counted(f"{name}, round {number}"):
                    turns[name](number)

    @contextlib.contextmanager
    def _counted(self, what: str) -> Iterator[None]:
        try:
            yield
        except LoadFailed as error:
            self.failed = True
            print(f"failed: {what}: {error}", file=sys.stderr, flush=True)


def figures_table(rows: list[list[Cell]]) -> str:
    """Rows as `Figures.row` and `Figures.share` give them."""
    return table(HEAD, rows)


def _short(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
