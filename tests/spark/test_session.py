"""What a local Spark session leaves on the machine."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_the_jvm_puts_down_is_in_the_sessions_own_folder(spark: "SparkSession") -> None:
    """A JVM that is killed removes nothing; the folder goes with this process."""
    assert spark.range(1).count() == 1
    private = Path(os.environ["JAVA_HOME"])
    assert private.name.startswith("headrace-spark-")
    assert list(private.glob("spark-*"))
