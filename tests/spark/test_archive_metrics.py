"""What an archive tells Prometheus."""

import http.client
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.harness.storage import BareStorage
from tests.metrics.test_exposition import Samples, read

from headrace.cli import main

from .conftest import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def told(samples: Samples, name: str) -> float | None:
    return samples.get((f"headrace_archive_{name}", frozenset({("topic", "t")})))


class Log:
    """An archive that is so far."""

    def __init__(self) -> None:
        self.archived, self.end = 0, 0

    def standing(self) -> object:
        from headrace.spark.archive.job import Standing  # noqa: PLC0415

        return Standing(self.archived, self.end)


def test_the_table_is_as_fresh_as_the_last_moment_all_of_which_it_has() -> None:
    from headrace.spark.archive.metrics import ArchiveMetrics  # noqa: PLC0415

    now, log = 1_000.0, Log()
    metrics = ArchiveMetrics("t", lambda: now)
    metrics.watch(log)  # type: ignore[arg-type]
    assert (told(read(metrics.page()), "lag"), told(read(metrics.page()), "fresh_timestamp_seconds")) == (0, 1_000)
    seen = []
    # It never has everything, but it goes on: ten records behind, a hundred a step.
    for step in range(1, 5):
        now, log.archived, log.end = 1_000.0 + step, 100 * step - 10, 100 * step
        samples = read(metrics.page())
        assert told(samples, "lag") == 10
        seen.append(told(samples, "fresh_timestamp_seconds"))
    assert seen == [1_000, 1_001, 1_002, 1_003]


def test_without_storage_what_was_counted_is_told() -> None:
    from headrace.spark.archive.job import Progress  # noqa: PLC0415
    from headrace.spark.archive.metrics import ArchiveMetrics  # noqa: PLC0415
    from headrace.spark.errors import SparkError  # noqa: PLC0415

    class Away:
        def standing(self) -> object:
            raise SparkError("Redis does not answer")

    metrics = ArchiveMetrics("t")
    metrics.watch(Away())  # type: ignore[arg-type]
    metrics.took(Progress(5, 5, 100, 0.1, 0, 3, batch_files=2))
    metrics.took(Progress(7, 2, 50, 0.1, 0, 4, batch_files=1, group_failed=True))
    samples = read(metrics.page())
    names = ("records_total", "bytes_total", "files_total", "batches_total", "group_failures_total", "table_version")
    assert [told(samples, name) for name in names] == [7, 150, 3, 2, 1, 4]
    assert told(samples, "lag") is None


def test_it_answers_this_machine_by_its_own_name_only() -> None:
    from headrace.spark.archive.metrics import ArchiveMetrics, serve  # noqa: PLC0415

    address = serve(ArchiveMetrics("t"), "127.0.0.1:0")

    def status(path: str, host: str) -> int:
        connection = http.client.HTTPConnection(address, timeout=30)
        connection.request("GET", path, headers={"host": host})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    assert status("/metrics", address) == 200
    assert status("/metrics", "localhost:1") == 200
    assert status("/metrics", "evil.example:80") == 404
    assert status("/", address) == 404
    for wrong in ("0.0.0.0:0", "192.0.2.1:0", "127.0.0.1", "example.org:80", ":80", "127.0.0.1:x"):
        with pytest.raises(ValueError, match=r"expected HOST:PORT|does not appear to be"):
            serve(ArchiveMetrics("t"), wrong)


@pytest.mark.spark
def test_a_run_is_counted(spark: "SparkSession", storage: BareStorage) -> None:
    from headrace.spark.archive import ArchiveSettings, run  # noqa: PLC0415
    from headrace.spark.archive.metrics import ArchiveMetrics  # noqa: PLC0415

    topic = storage.create_topic("counted", partitions=2)
    for partition in range(2):
        storage.append(topic, partition, records(50))
    metrics = ArchiveMetrics("t")
    with tempfile.TemporaryDirectory() as folder:
        settings = ArchiveSettings(topic="counted", table=str(Path(folder) / "t"), redis=storage.url)
        lags = []

        def started(archive: object) -> None:
            metrics.watch(archive)  # type: ignore[arg-type]
            lags.append(told(read(metrics.page()), "lag"))

        run(settings, once=True, spark=spark, on_progress=metrics.took, on_start=started)
    assert lags[0] in {0, 100}
    samples = read(metrics.page())
    assert told(samples, "records_total") == 100
    assert told(samples, "files_total") == 2
    assert (told(samples, "bytes_total") or 0) > 0


@pytest.mark.spark
def test_the_command_answers_scrapes_as_the_guide_says(
    spark: "SparkSession", storage: BareStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = storage.create_topic("scraped", partitions=2)
    for partition in range(2):
        storage.append(topic, partition, records(30))
    asked = ["archive", "--topic", "scraped", "--table", str(tmp_path / "t"), "--redis", storage.url, "--once"]
    assert main.run([*asked, "--metrics", "127.0.0.1:0"]) == 0
    said = capsys.readouterr().err
    address = re.search(r"^metrics at http://(\S+)/metrics$", said, re.MULTILINE)
    assert address is not None, said
    # It answers for as long as the process runs.
    connection = http.client.HTTPConnection(address[1], timeout=30)
    connection.request("GET", "/metrics")
    samples = read(connection.getresponse().read())
    connection.close()
    guide = (Path(__file__).parents[2] / "docs/guides/monitoring.md").read_text("utf-8")
    for name in ("lag", "fresh_timestamp_seconds"):
        assert f"`headrace_archive_{name}`" in guide
    found = {name: value for (name, labels), value in samples.items() if labels == {("topic", "scraped")}}
    assert (found["headrace_archive_records_total"], found["headrace_archive_lag"]) == (60, 0)
    assert found["headrace_archive_fresh_timestamp_seconds"] > 0
