"""Enrichment, the table: the airlines' names, the newest record of each key in their topic."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

SERVERS = os.environ.get("HEADRACE_BOOTSTRAP", "127.0.0.1:9092")


@dp.materialized_view
def airlines() -> DataFrame:
    records = (
        SparkSession.active()
        .read.format("headrace")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", "airlines")
        .load()
    )
    newest = records.groupBy("key").agg(f.max_by("value", "offset").alias("value"))
    airline = f.from_json(f.col("value").cast("string"), "carrier STRING, name STRING")
    return newest.select(airline.alias("airline")).select("airline.*")
