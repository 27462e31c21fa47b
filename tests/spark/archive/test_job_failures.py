"""What Spark says of a failed query, as one line, and whether trying again can help."""

import pytest
from pyspark.errors import PySparkException

from headrace.client.errors import ModuleMissing, SparkError, StoreUnavailable, TaskFailed
from headrace.spark.archive.job import error_from_spark
from headrace.text import extras

FIRST = "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (FIRST, SparkError, FIRST),
        ("", SparkError, "PySparkException"),
        (
            f"{FIRST}\nTraceback (most recent call last):\n  File x\npyarrow.lib.ArrowInvalid: odd\n\tat java.x\n",
            TaskFailed,
            f"{FIRST}: pyarrow.lib.ArrowInvalid: odd",
        ),
        (f"{FIRST}\n  File x\nMemoryError\n", SparkError, f"{FIRST}: MemoryError"),
        (f"{FIRST}\n  File x\nConnectionResetError: gone\n", SparkError, f"{FIRST}: ConnectionResetError: gone"),
        (
            f"{FIRST}\n\tat x\nCaused by: org.apache.spark.SparkException: Python worker exited (crashed)\n",
            SparkError,
            f"{FIRST}: org.apache.spark.SparkException: Python worker exited (crashed)",
        ),
        (
            f"{FIRST}\n  File x\nModuleNotFoundError: No module named 'google'\n\tat java.x\n",
            ModuleMissing,
            f"one of Spark's Python processes needs the Python module google: {extras.advice('schemas')}",
        ),
        (f"{FIRST}\nheadrace.client.errors.StoreUnavailable: away\n", StoreUnavailable, "away"),
    ],
)
def test_the_cause_is_in_the_line(text: str, kind: type[SparkError], message: str) -> None:
    error = error_from_spark(PySparkException(text))
    assert (type(error), str(error)) == (kind, message)
