"""The end of the demo: every figure beside the one it must equal, and whether it does."""

from collections.abc import Mapping, Sequence

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.demo.figures import WHOLE, Figure, Figures, Group, carriers, compare, months
from headrace.demo.messages import Queried

_SHOWN = 20
"""Differences listed at most; the first of many say enough."""


class Check(msgspec.Struct, frozen=True):
    """Something that must hold, and what speaks against it."""

    claim: str
    against: list[str]

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.against


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What each part of the demo says."""

    package: Figures
    """Computed straight from the package."""
    airlines: Mapping[str, str]
    """What the carriers are called."""
    readers: Figures
    """Counted by the consumer group."""
    acknowledged: int
    checksum: int
    """Of what was sent."""
    unread: list[str]
    again: int
    lags: Mapping[str, int]
    """Of each group, at the end."""
    table: Queried

    @property
    def total(self) -> int:
        """How many flights there are."""
        return self.package[WHOLE].flights

    @property
    def by_airline(self) -> dict[Group, Figure]:
        """The package's, by the airlines' names instead of their codes."""
        return {
            (carrier and self.airlines.get(carrier, ""), month): one for (carrier, month), one in self.package.items()
        }

    @property
    def table_figures(self) -> dict[Group, Figure]:
        """As Spark computed them."""
        return {(carrier, month): figure for carrier, month, figure in self.table.figures}


def check(outcome: Outcome) -> list[Check]:
    """All that must hold."""
    total, table = outcome.total, outcome.table
    return [
        Check(f"the server acknowledged all {total:,} flights", _unequal(total, outcome.acknowledged)),
        Check(
            f"the group read every record ({outcome.again:,} deliveries were repeated after the kill, counted once)",
            [*outcome.unread],
        ),
        Check(
            "and committed all of them: no lag in any group",
            [f"group {group} is {lag:,} records behind" for group, lag in outcome.lags.items() if lag],
        ),
        Check("the readers' figures are the package's", compare(outcome.package, outcome.readers)),
        Check(f"the table has {total:,} rows", _unequal(total, table.rows)),
        Check(
            "exactly once: as many different (partition, offset), without a gap",
            _unequal(total, table.distinct) + _gaps(table),
        ),
        Check(
            "the CRC-32 of all values, added up, is the same in the table as at sending",
            _unequal(outcome.checksum, table.checksum),
        ),
        Check("the table's figures, read by Spark, are the package's", compare(outcome.package, outcome.table_figures)),
        Check(
            "so are those of the other table, by the airlines' names, read without Spark",
            compare(outcome.by_airline, {(name, month): figure for name, month, figure in table.named}),
        ),
    ]


def _unequal(expected: int, found: int) -> list[str]:
    return [] if expected == found else [f"expected {expected:,}, found {found:,}"]


def _gaps(table: Queried) -> list[str]:
    return [
        f"partition {partition}: {extent.rows:,} rows for offsets {extent.first} to {extent.last}"
        for partition, extent in sorted(table.extents.items())
        if (extent.first, extent.last) != (0, extent.rows - 1)
    ]


def show(console: Console, outcome: Outcome, checks: Sequence[Check]) -> None:
    """Print the figures by carrier and by month, then the checks."""
    by_carrier = [(carrier, (carrier, None)) for carrier in carriers([*outcome.package, *outcome.table_figures])]
    by_month = [(str(month), (None, month)) for month in months([*outcome.package, *outcome.table_figures])]
    everything = ("all", WHOLE)
    console.print()
    _show_figures(console, outcome, "carrier", [*by_carrier, everything])
    console.print()
    _show_figures(console, outcome, "month", [*by_month, everything])
    console.print()
    for each in checks:
        mark = Text("  agrees   ", style="green") if each.holds else Text("  DIFFERS  ", style="bold red")
        console.print(mark.append(each.claim, style="default"), soft_wrap=True)
        for line in each.against[:_SHOWN]:
            console.print(f"           {line}", soft_wrap=True)
        if len(each.against) > _SHOWN:
            console.print(f"           and {len(each.against) - _SHOWN:,} more", soft_wrap=True)


def _show_figures(console: Console, outcome: Outcome, name: str, groups: Sequence[tuple[str, Group]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(name)
    for source in ("package", "readers", "table"):
        table.add_column(f"flights\n{source}", justify="right")
    for source in ("package", "readers", "table"):
        table.add_column(f"mean delay\n{source}", justify="right")
    table.add_column("")
    for label, group in groups:
        found = [figures.get(group) for figures in (outcome.package, outcome.readers, outcome.table_figures)]
        agrees = found[0] == found[1] == found[2]
        table.add_row(
            label,
            *(f"{figure.flights:,}" if figure else "-" for figure in found),
            *(_mean(figure) for figure in found),
            "agrees" if agrees else "DIFFERS",
            style="" if agrees else "bold red",
            end_section=False,
        )
    console.print(table)


def _mean(figure: Figure | None) -> str:
    return "-" if figure is None or figure.mean is None else f"{figure.mean:.4f}"
