"""A package file of a few flights, in an order of its own."""

import csv
import zipfile
from pathlib import Path

import pytest

from headrace.demo.flights import Flight

COLUMNS = Flight.__struct_fields__


def flight(
    number: int, day: int, due: int, delay: int | None, carrier: str = "UA", month: int = 1
) -> dict[str, object]:
    """A row as the package has it: `NA` where there is nothing."""
    missing = "NA" if delay is None else None
    return {
        "year": 2013,
        "month": month,
        "day": day,
        "dep_time": missing or due + 1,
        "sched_dep_time": due,
        "dep_delay": missing or delay,
        "arr_time": missing or due + 200,
        "sched_arr_time": due + 190,
        "arr_delay": missing or 10,
        "carrier": carrier,
        "flight": number,
        "tailnum": missing or f"N{number}",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": missing or 100,
        "distance": 1400,
        "hour": due // 100,
        "minute": due % 100,
        "time_hour": "2013-01-01T10:00:00Z",
    }


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    """The package's file with these rows."""
    text = path.with_suffix(".csv")
    with text.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(text, "flights.csv")
    return path


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Six flights: two due in the same minute, one cancelled, two months, three carriers."""
    rows = [
        flight(1, day=2, due=900, delay=5),
        flight(2, day=1, due=1000, delay=-3, carrier="AA"),
        flight(3, day=1, due=600, delay=None, carrier="AA"),
        flight(4, day=1, due=1000, delay=60, carrier="B6"),
        flight(5, day=1, due=500, delay=0, month=2),
        flight(6, day=1, due=559, delay=7),
    ]
    return write(tmp_path / "flights.zip", rows)
