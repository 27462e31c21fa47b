"""Tables, checkpoints and catalogs in folders of hostile names: each is written twice, and the second run goes on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from tests.harness.storage import BareStorage
from tests.spark.bare_archiver import Archiver, archived, pairs

from headrace.cli import main
from headrace.lakehouse import paths
from headrace.lakehouse.read.table import LakeTable
from headrace.lakehouse.write.iceberg import IcebergName, IcebergTwin
from headrace.lakehouse.write.location import Place
from headrace.lakehouse.write.table import ArchiveTable
from headrace.topics.model import Topic

from .conftest import records, run_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("a b", "100%", "a#b", "a+b", "a?b", "a&b=c", "a:b;c", "it's", 'a"b', "é日", "a*{b}")
EVERYTHING = "a b 100%#d+e?f&g:h=i;'j\"é日*{k}"


def folders(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def rows(offsets: Any) -> list[tuple[int, int]]:
    return sorted(zip(offsets.column("partition").to_pylist(), offsets.column("offset").to_pylist(), strict=True))


@pytest.mark.parametrize("name", [*NAMES, EVERYTHING])
def test_an_archive_its_iceberg_table_and_those_who_read_them(
    storage: BareStorage, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = storage.create_topic(f"hostile-{[*NAMES, EVERYTHING].index(name)}")
    storage.append(topic, 0, records(60))
    folder = tmp_path / name
    folder.mkdir()
    place = Place.of(str(folder / "t"))
    catalog = {"type": "sql", "uri": "sqlite:///" + str(tmp_path / "catalog.db"), "warehouse": f"file://{tmp_path}/w"}

    def follow() -> IcebergTwin:
        table = ArchiveTable(place)
        twin = IcebergTwin(IcebergName("lake:archive.t", catalog), table)
        twin.sync(table.snapshot())
        return twin

    assert Archiver(storage, topic, place).archive((0, 0, 20)) == 20
    follow()
    # Another process, which knows nothing but the path.
    again = Archiver(storage, topic, Place.of(paths.file_url(folder / "t")))
    assert again.archive((0, 0, 40)) == 20
    again.archive((0, 40, 60))
    follow()
    everything = pairs(0, range(60))
    assert archived(folder / "t") == everything
    assert in_iceberg(catalog) == everything
    assert in_lake(topic, place) == list(range(60))
    options = [f"--iceberg-option={key}={value}" for key, value in catalog.items()]
    assert main.run(["tables", "compact", str(folder / "t"), *options]) == 0
    assert "3 files became 1" in capsys.readouterr().out
    assert main.run(["tables", "vacuum", str(folder / "t"), *options]) == 0
    assert archived(folder / "t") == in_iceberg(catalog) == everything
    assert in_lake(topic, place) == list(range(60))
    assert folders(tmp_path) == {name, "catalog.db"}
    assert folders(folder) == {"t"}, "the metadata of Iceberg lies in the table"


def in_iceberg(catalog: dict[str, str]) -> list[tuple[int, int]]:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    return rows(load_catalog("lake", **catalog).load_table("archive.t").scan().to_arrow())


def in_lake(topic: Topic, place: Place) -> list[int]:
    """Offsets as the server and Spark's tasks read old records back."""
    table = LakeTable(place.url, str(topic.id))
    found = table.scan(0, 0, 60, include_headers=True)
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


@pytest.mark.spark
def test_an_archive_with_a_checkpoint(
    spark: "SparkSession", storage: BareStorage, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.spark.archive import ArchiveSettings, run  # noqa: PLC0415

    folder = scratch / EVERYTHING
    folder.mkdir()
    monkeypatch.chdir(folder)
    topic = storage.create_topic("hostile-checkpoint")
    storage.append(topic, 0, records(50))
    # Relative, as a user writes it.
    settings = ArchiveSettings(topics=(topic.name,), table="t", redis=storage.url, checkpoint="c d%20")
    assert run(settings, once=True, spark=spark).rows == 50
    storage.append(topic, 0, records(5, 50))
    monkeypatch.chdir(scratch)
    url = paths.file_url(folder / "c d%20")
    settings = ArchiveSettings(topics=(topic.name,), table=str(folder / "t"), redis=storage.url, checkpoint=url)
    assert run(settings, once=True, spark=spark).rows == 5
    assert archived(folder / "t") == pairs(0, range(55))
    assert folders(folder) == {"t", "c d%20"}
    assert len(folders(folder / "c d%20")) == 1, "the second run went on with the checkpoint of the first"
    # Hadoop matches no pattern with a colon in it, and such a path is one for its braces.
    copied = shutil.copytree(folder / "t", scratch / "a b%#?é{k}*" / "t")
    frame = spark.read.parquet(*paths.for_spark(DeltaTable(copied).file_uris()))
    assert frame.count() == 55


@pytest.mark.spark
def test_a_query_into_a_table(spark: "SparkSession", storage: BareStorage, scratch: Path) -> None:
    folder = scratch / EVERYTHING
    topic = storage.create_topic("hostile-sink")

    def run(count: int, first: int) -> None:
        storage.append(topic, 0, records(count, first))
        reader = spark.readStream.format("headrace").option("redis", storage.url).option("subscribe", topic.name)
        frame = reader.option("startingOffsets", "earliest").load().selectExpr("partition", "offset", "topic AS `é#+`")
        writer = frame.writeStream.format("headrace.delta").option("checkpointLocation", str(folder / "c"))
        run_out(writer.option("partitionBy", "é#+"), str(folder / "t"))

    run(50, 0)
    run(5, 50)
    assert archived(folder / "t") == pairs(0, range(55))
    assert folders(scratch) == {EVERYTHING}
    assert folders(folder) == {"t", "c"}


@pytest.mark.spark
def test_a_session_with_a_hostile_temporary_folder(tmp_path: Path) -> None:
    folder = tmp_path / EVERYTHING
    folder.mkdir()
    code = (
        "from headrace.spark import session; spark = session.create(master='local[1]', optimize=False)\n"
        "print(spark.range(3).rdd.map(lambda row: row.id).sum(), spark._jvm.System.getProperty('java.io.tmpdir'))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.stdout.startswith(f"3 {folder}/headrace-spark-"), ended.stderr
    assert folders(tmp_path) == {EVERYTHING}
