"""Final report: each figure next to its expected value."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.demo import cancellations
from headrace.demo.flights import WHOLE, Figure, Figures, Group, Tally, carriers, compare, months
from headrace.demo.messages import Queried, Read, Ready

_SHOWN = 20
"""Maximum number of listed differences."""


class Check(msgspec.Struct, frozen=True):
    """A condition and its violations."""

    claim: str
    against: list[str]

    @property
    def holds(self) -> bool:
        """Whether there are none."""
        return not self.against


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Results of each part of the demo."""

    package: Figures
    """Computed from the package."""
    airlines: Mapping[str, str]
    """Airline of each carrier."""
    readers: Figures
    """Counted by the consumer group."""
    acknowledged: int
    checksum: int
    """Of the sent values."""
    unread: list[str]
    again: int
    lags: Mapping[str, int]
    """Final lag by group."""
    table: Queried
    cancelled: Figures
    """Counted in the topic of the canceled flights."""

    @property
    def total(self) -> int:
        """Number of flights."""
        return self.package[WHOLE].flights

    @property
    def by_airline(self) -> dict[Group, Figure]:
        """Expected figures by airline's name."""
        return {
            (carrier and self.airlines.get(carrier, ""), month): one for (carrier, month), one in self.package.items()
        }

    @property
    def table_figures(self) -> dict[Group, Figure]:
        """Figures computed by Spark."""
        return {(carrier, month): figure for carrier, month, figure in self.table.figures}


def check(outcome: Outcome) -> list[Check]:
    """Return all checks."""
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
        Check(
            f"the topic {cancellations.TOPIC}, written by Spark exactly once, has each of the canceled flights once",
            compare(cancellations.of(outcome.package), outcome.cancelled),
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
    """Print the figures by carrier and month, then the checks."""
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


def show_next_steps(
    console: Console, ready: Ready, topic: str, group: str, stream: str, data: Path, table: Path
) -> None:
    """Print addresses and command lines."""
    headrace = _program()
    console.print("\nThe server stays up until Ctrl-C:\n", style="bold")
    for name, address in (("Kafka", ready.kafka), ("HTTP", ready.http), ("storage", ready.storage), ("table", table)):
        console.print(f"  {name:<8} {address}", soft_wrap=True)
    console.print("\nThings to try in another terminal:\n", style="bold")
    for line in (
        f"{headrace} topics describe {topic} --bootstrap {ready.kafka}",
        f"{headrace} groups describe {group} --bootstrap {ready.kafka}",
        f"{headrace} records tail {topic} --from-beginning --max 3 --bootstrap {ready.kafka}",
        f"kcat -b {ready.kafka} -C -t {topic} -o beginning -c 3",
        f"kcat -b {ready.kafka} -G my-group -X auto.offset.reset=earliest {topic} | head -n 1000 > my-flights",
        f"redis-cli {_storage(ready.storage)} XINFO GROUPS {shlex.quote(stream)}",
        f"curl {ready.http}/healthz",
    ):
        console.print(f"  {line}", soft_wrap=True, highlight=False)
    console.print(f"\nLogs: {data}/*.log; the next demo empties {data}.")


def _storage(url: str) -> str:
    found = urlsplit(url)
    if found.scheme == "redis+cluster":
        # redis-cli discovers the other nodes.
        host, _, port = found.netloc.partition(",")[0].rpartition(":")
        return f"-c -h {host} -p {port}"
    return f"-s {shlex.quote(unquote(found.path))}"


def _program() -> str:
    here = Path(sys.argv[0]) if Path(sys.argv[0]).name == "headrace" else Path(sys.executable).with_name("headrace")
    found = shutil.which("headrace")
    if found is not None and Path(found).resolve() == here.resolve():
        return "headrace"
    return shlex.quote(os.path.relpath(here))


class Coverage:
    """Records read by all consumers together."""

    def __init__(self) -> None:
        self.seen = 0
        """Number of distinct records."""
        self.again = 0
        """Duplicate deliveries."""
        self._seen: dict[int, bytearray] = {}
        self._tally = Tally()

    def add(self, read: Read) -> None:
        """Add a delivery."""
        marks = self._seen.setdefault(read.partition, bytearray())
        end = read.first + len(read.months)
        if len(marks) < end:
            marks.extend(bytes(end - len(marks)))
        new = 0
        for offset, carrier, month, delay in zip(
            range(read.first, end), read.carriers, read.months, read.delays, strict=True
        ):
            if not marks[offset]:
                marks[offset] = 1
                new += 1
                self._tally.add(carrier, month, delay)
        self.seen += new
        self.again += end - read.first - new

    def figures(self) -> dict[Group, Figure]:
        """Return the figures of the distinct records."""
        return self._tally.figures()

    def missing(self, ends: dict[int, int]) -> list[str]:
        """Return gaps before the log end offsets."""
        lines = []
        for partition, end in sorted(ends.items()):
            marks = self._seen.get(partition, bytearray())
            unread = end - sum(marks[:end])
            if unread:
                at = marks[:end].find(0)
                first = at if at >= 0 else len(marks)
                lines.append(f"partition {partition}: {unread:,} records were never read, the first at offset {first}")
        return lines
