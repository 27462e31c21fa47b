"""Deduplication: every flight once, whatever was sent twice, in a Delta table that any reader counts right."""

import os
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

SERVERS = os.environ.get("HEADRACE_BOOTSTRAP", "127.0.0.1:9092")
TABLE = os.environ.get("FLIGHTS_TABLE", "/tmp/headrace-flights/flights_once")
FLIGHT = "carrier STRING, flight INT, origin STRING, dest STRING, dep_delay INT, time_hour TIMESTAMP"

dp.create_sink("flights_once", "headrace.delta", {"path": str(Path(TABLE).absolute())})


@dp.append_flow(target="flights_once")
def first_of_each() -> DataFrame:
    records = (
        SparkSession.active()
        .readStream.format("headrace")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .load()
    )
    flights = records.select(f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight")).select("flight.*")
    return (
        flights.where("time_hour IS NOT NULL")
        .withWatermark("time_hour", "2 hours")
        # One carrier uses a number once an hour and airport; Spark forgets it when the watermark has passed.
        .dropDuplicatesWithinWatermark(["carrier", "flight", "origin", "dest", "time_hour"])
    )
