"""The pipelines of examples/flights, run as the guide says, against what plain Python makes of the same flights."""

import datetime as dt
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable
from pyarrow import dataset

from headrace.demo import flights
from headrace.demo.flights import Flight
from headrace.testing import Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights"
COUNT = 3_000
SIX_HOURS = 6 * 3600


def fill(kafka: str) -> tuple[dict[str, int], Any]:
    spec = importlib.util.spec_from_file_location("fill", EXAMPLE / "fill.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.fill(kafka, COUNT), module


def project(place: Path) -> Path:
    """The example with its checkpoints in this test's folder."""
    folder = place / "flights"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "tables", ".pipeline"))
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/headrace-flights", str(place)))
    return folder


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dataset.dataset(folder / "tables" / table, format="parquet").to_table().to_pylist()
    return found


def values(kafka: str, topic: str) -> list[dict[str, Any]]:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "check"})
    place = TopicPartition(topic, 0, 0)
    rest = consumer.get_watermark_offsets(place, 60)[1]
    consumer.assign([place])
    found: list[dict[str, Any]] = []
    while len(found) < rest:
        # What comes instead of a record is about a connection, which the client makes again.
        records = [message for message in consumer.consume(rest, 10) if message.error() is None]
        found += [json.loads(message.value() or b"") for message in records]
    consumer.close()
    return found


def hour(flight: Flight) -> dt.datetime:
    return dt.datetime.fromisoformat(flight.time_hour)


@pytest.mark.spark
@pytest.mark.pipelines
@pytest.mark.timeout(1200)
def test_five_pipelines_on_the_flights(broker: Server, tmp_path: Path) -> None:
    counts, filling = fill(broker.kafka)
    folder = project(tmp_path)
    environment = {**os.environ, "HEADRACE_BOOTSTRAP": broker.kafka, "FLIGHTS_TABLE": str(tmp_path / "once")}
    command = [sys.executable, "-m", "headrace", "pipeline", "run", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stderr
    sent = list(enumerate(flights.in_order(flights.package_file(), COUNT)))
    whole = [flight for number, flight in sent if number % filling.CUT]
    twice = [flight for number, flight in sent if number % filling.TWICE == 1]
    bad = COUNT - len(whole)

    # The console shows what the run did.
    shown = " ".join(re.sub(r"<[^>]*>", " ", urlopen(f"{broker.http}/pipeline").read().decode()).split())
    everything = counts["flights"]
    run = rf"flights done Flow State .* flights_bronze completed {everything:,} {everything:,} [\w ]+ 0 "
    assert re.search(run, shown), shown

    # Bronze, silver, gold, and bad rows.
    assert counts["flights"] == len(whole) + len(twice) + bad
    assert f"flights_bronze: flights records={counts['flights']}, bad={bad}" in done.stdout.splitlines()
    assert len(rows(folder, "flights_bronze")) == counts["flights"]
    assert len(rows(folder, "flights_bad")) == bad
    gold = {(row["origin"], row["day"]): (row["flights"], row["departed"]) for row in rows(folder, "flights_gold")}
    days = Counter((flight.origin, hour(flight).date()) for flight in whole + twice)
    departed = Counter((one.origin, hour(one).date()) for one in whole + twice if one.dep_delay is not None)
    assert gold == {key: (count, departed[key]) for key, count in days.items()}

    # Windows, back into a topic: those that the watermark, an hour behind the newest flight, has closed.
    closed = max(map(hour, whole)).timestamp() - 3600
    windows = Counter((flight.origin, hour(flight).timestamp() // SIX_HOURS * SIX_HOURS) for flight in whole + twice)
    told = {(one["origin"], one["from"]): one["flights"] for one in values(broker.kafka, "departures")}
    assert told == {
        (origin, dt.datetime.fromtimestamp(start, dt.UTC).strftime("%Y-%m-%dT%H:%MZ")): count
        for (origin, start), count in windows.items()
        if start + SIX_HOURS <= closed
    }

    # Each once, in a Delta table.
    once = DeltaTable(tmp_path / "once").to_pyarrow_table(columns=["carrier", "flight", "origin", "dest", "time_hour"])
    assert Counter(tuple(row.values()) for row in once.to_pylist()) == Counter(
        {(one.carrier, one.flight, one.origin, one.dest, hour(one)) for one in whole}
    )

    # Joined with the weather of its hour, where there was an observation.
    observed = {
        (row["origin"], row["time_hour"]): float(row["wind_speed"])
        for row in filling.rows("weather")
        if row["wind_speed"] != "NA"
    }
    windy = Counter(
        (one.carrier, one.flight, observed[one.origin, one.time_hour])
        for one in whole + twice
        if (one.origin, one.time_hour) in observed
    )
    joined = [row for row in rows(folder, "flights_in_weather") if row["wind_speed"] is not None]
    assert Counter((row["carrier"], row["flight"], row["wind_speed"]) for row in joined) == windy

    # Enriched from a table.
    names = {row["carrier"]: row["name"] for row in filling.rows("airlines")}
    assert Counter(row["airline"] for row in rows(folder, "flights_with_names")) == Counter(
        names[one.carrier] for one in whole + twice
    )
