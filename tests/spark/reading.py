"""A query to be killed: copies topics into a Delta table, exactly once. Run by test_crash_reading.

Arguments: folder for the table and the checkpoint, then options of the source as NAME=VALUE.
"""

import sys
from pathlib import Path

from headrace.spark import session


def main() -> None:
    folder = Path(sys.argv[1])
    options = dict(argument.split("=", 1) for argument in sys.argv[2:])
    # A task whose Python worker was killed is tried again.
    spark = session.create("reading", master="local[2,4]", optimize=False)
    (
        spark.readStream.format("headrace")
        .options(**options)
        .load()
        .select("topic", "partition", "offset")
        .writeStream.format("headrace.delta")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start(str(folder / "table"))
        .awaitTermination()
    )


if __name__ == "__main__":
    main()
