"""A join of two streams: each flight with the weather of its airport in the hour it was due.

Both have a watermark, and the condition bounds the time between the two: so Spark knows how long it must keep either.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

SERVERS = os.environ.get("HEADRACE_BOOTSTRAP", "127.0.0.1:9092")


def rows(topic: str, schema: str) -> DataFrame:
    """A topic's records in columns."""
    records = (
        SparkSession.active()
        .readStream.format("headrace")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    return records.select(f.from_json(f.col("value").cast("string"), schema).alias("row")).select("row.*")


@dp.table
def flights_in_weather() -> DataFrame:
    flights = (
        rows("flights", "carrier STRING, flight INT, origin STRING, dep_delay INT, time_hour TIMESTAMP")
        .where("time_hour IS NOT NULL")
        .withWatermark("time_hour", "1 hour")
    )
    weather = (
        rows("weather", "origin STRING, time_hour TIMESTAMP, wind_speed DOUBLE, visib DOUBLE")
        .withColumnsRenamed({"origin": "station", "time_hour": "observed"})
        .withWatermark("observed", "1 hour")
    )
    in_its_hour = f.expr("origin = station AND time_hour >= observed AND time_hour < observed + INTERVAL 1 HOUR")
    return flights.join(weather, in_its_hour).drop("station", "observed")
