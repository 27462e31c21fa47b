"""Copy a topic with Spark, each record exactly once, without a jar; from and to Headrace or Apache Kafka.

    headrace serve
    python examples/copy_exactly_once.py --kafka 127.0.0.1:9092 --checkpoint checkpoints/copy

Both topics must exist. The query copies what there is and stops. Kill it at any time and start it again with the same
checkpoint: readers with isolation.level=read_committed see no record twice, and miss none.
"""

import argparse

from pyspark.sql import SparkSession

from headrace.spark import session


def copy(spark: SparkSession, kafka: str, source: str, target: str, checkpoint: str) -> None:
    """Copy what there is."""
    records = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", kafka)
        # Transactions that were aborted are not copied.
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        records.select("key", "value")
        .writeStream.format("headrace")
        .option("kafka.bootstrap.servers", kafka)
        .option("topic", target)
        .option("deliveryGuarantee", "exactly-once")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser(description="Copy a topic exactly once.")
    parser.add_argument("--kafka", default="127.0.0.1:9092")
    parser.add_argument("--source", default="orders")
    parser.add_argument("--target", default="orders-copy")
    parser.add_argument("--checkpoint", required=True)
    given = parser.parse_args()
    spark = session.create("copy", master="local[2]", optimize=False)
    copy(spark, given.kafka, given.source, given.target, given.checkpoint)
    spark.stop()


if __name__ == "__main__":
    main()
