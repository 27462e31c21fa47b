"""One Valkey and one Spark session for all tests of this folder; topics have a name of their own each."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.harness.storage import BareStorage, bare_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

DAY = 1_700_000_000_000


def records(
    count: int, first: int = 0
) -> list[tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]]:
    """Records identified by their number, which is also in the timestamp."""
    return [(b"k%d" % n, b"v%d" % n, DAY + n, ()) for n in range(first, first + count)]


def run_out(writer: "DataStreamWriter", path: str | None = None) -> "StreamingQuery":
    """Run a query until it has read everything there is, which it goes on with from its checkpoint; the query.

    Spark gives a Python process ten seconds to start, which a busy machine may exceed: nothing has been read then.
    """
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415  # most tests of this folder need no Spark

    while True:
        query = writer.trigger(availableNow=True).start(path)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return query


@pytest.fixture(scope="session")
def storage() -> Iterator[BareStorage]:
    with bare_storage() as started:
        yield started


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    from headrace.spark import session  # noqa: PLC0415  # most tests of this folder need no Spark
    from headrace.spark.pipelines import run  # noqa: PLC0415

    conf = run.connect_settings()
    started = session.create("headrace tests", master="local[2]", optimize=False, log_level="off", conf=conf)
    yield started
    started.stop()
