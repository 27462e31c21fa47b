"""Bronze, silver, gold, the first of them: every record as it came, and as a flight where it is one.

Spark's pipelines have no expectations. Bad rows go into another table (medallion.sql), and `observe` counts them while
they pass: `headrace pipeline run` shows the counts.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

SERVERS = os.environ.get("HEADRACE_BOOTSTRAP", "127.0.0.1:9092")
FLIGHT = "carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, dep_delay INT, time_hour TIMESTAMP"


@dp.table
def flights_bronze() -> DataFrame:
    records = (
        SparkSession.active()
        .readStream.format("headrace")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .load()
    )
    broken = f.col("parsed").isNull() | f.col("parsed._bad").isNotNull()
    parsed = f.from_json(f.col("value").cast("string"), f"{FLIGHT}, _bad STRING", {"columnNameOfCorruptRecord": "_bad"})
    return (
        records.withColumn("parsed", parsed)
        .withColumn("flight", f.when(~broken, f.col("parsed").dropFields("_bad")))
        .drop("parsed")
        .observe("flights", f.count("*").alias("records"), f.count_if(f.col("flight").isNull()).alias("bad"))
    )
