"""Topics for the pipelines of this example: New York's flights and weather of 2013, as a careless producer sends them.

    headrace serve
    python examples/flights/fill.py --kafka 127.0.0.1:9092

Some flights are sent twice, as a producer without idempotence does after a lost answer; some are cut off.
"""

import argparse
import csv
import json
from collections.abc import Iterator
from itertools import takewhile

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.demo import flights

TOPICS = {"flights": 2, "weather": 1, "airlines": 1, "departures": 1}
"""How many partitions each has; `departures` is what a pipeline fills."""
TWICE = 50
"""Every so manieth flight is sent twice."""
CUT = 200
"""Every so manieth flight is cut off."""


def rows(name: str) -> Iterator[dict[str, str]]:
    """A table of the package."""
    with (flights.package_file().parent / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def sent(limit: int) -> Iterator[tuple[str, str, str]]:
    """Topic, key and value of everything that is sent; `limit` flights."""
    latest = ""
    for number, flight in enumerate(flights.in_order(flights.package_file(), limit)):
        value = msgspec.json.encode(flight).decode()
        latest = max(latest, flight.time_hour)
        yield "flights", flight.carrier, value[:40] if number % CUT == 0 else value
        if number % TWICE == 1:
            yield "flights", flight.carrier, value
    for airline in rows("airlines"):
        yield "airlines", airline["carrier"], json.dumps(airline)
    for origin in ("EWR", "JFK", "LGA"):
        observed = (row for row in rows("weather") if row["origin"] == origin)
        for row in takewhile(lambda row: row["time_hour"] <= latest, observed):
            wind = None if row["wind_speed"] == "NA" else float(row["wind_speed"])
            found = {"origin": origin, "time_hour": row["time_hour"], "wind_speed": wind, "visib": float(row["visib"])}
            yield "weather", origin, json.dumps(found)


def fill(kafka: str, limit: int) -> dict[str, int]:
    """Create the topics and fill them; how many records each got."""
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.create_topics([NewTopic(name, count) for name, count in TOPICS.items()]).values():
        future.result(10)
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 20})
    counts = dict.fromkeys(TOPICS, 0)
    for topic, key, value in sent(limit):
        producer.produce(topic, value, key)
        counts[topic] += 1
        producer.poll(0)
    if producer.flush(30):
        raise SystemExit("not everything was acknowledged")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kafka", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--flights", type=int, default=5_000, metavar="COUNT")
    given = parser.parse_args()
    for topic, count in fill(given.kafka, given.flights).items():
        print(f"{topic}: {count:,}")


if __name__ == "__main__":
    main()
