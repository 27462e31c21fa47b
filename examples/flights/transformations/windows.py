"""A windowed aggregate, back into a topic: departures of each airport in six hours, once nothing more can come.

A watermark says when: flights may be an hour late. Topics are written at least once: of a key, the newest record
counts.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

SERVERS = os.environ.get("HEADRACE_BOOTSTRAP", "127.0.0.1:9092")

dp.create_sink("departures", "headrace", {"kafka.bootstrap.servers": SERVERS, "topic": "departures"})


@dp.append_flow(target="departures")
def departures_by_window() -> DataFrame:
    flight = f.from_json(f.col("value").cast("string"), "origin STRING, dep_delay INT, time_hour TIMESTAMP")
    records = (
        SparkSession.active()
        .readStream.format("headrace")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .load()
    )
    windows = (
        records.select(flight.alias("flight"))
        .select("flight.*")
        .where("time_hour IS NOT NULL")
        .withWatermark("time_hour", "1 hour")
        .groupBy(f.window("time_hour", "6 hours"), "origin")
        .agg(f.count("*").alias("flights"), f.count("dep_delay").alias("departed"))
    )
    start = f.date_format("window.start", "yyyy-MM-dd'T'HH:mm'Z'")
    value = f.to_json(f.struct("origin", start.alias("from"), "flights", "departed"))
    return windows.select(f.concat_ws(" ", "origin", start).alias("key"), value.alias("value"))
