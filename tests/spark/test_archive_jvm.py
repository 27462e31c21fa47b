"""Delta's own reader for Spark, which is the JVM's, reads the archive: `make test LANE=lake`; Maven fetches it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness import fetching
from tests.harness.storage import BareStorage
from tests.spark.bare_archiver import Archiver

from headrace.lakehouse.decoders.decoder import Decoding
from headrace.lakehouse.write import maintenance
from headrace.lakehouse.write.location import Place
from headrace.lakehouse.write.table import ArchiveTable
from headrace.records.build import build

from .conftest import DAY

pytestmark = [pytest.mark.spark, pytest.mark.maven, pytest.mark.timeout(600)]

READER = """
import json, sys
from headrace.spark import session
jars, *tables = sys.argv[1:]
spark = session.create("delta", master="local[2]", optimize=False, log_level="off", conf={
    "spark.jars": jars,
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
})
for path, number in zip(tables[::2], tables[1::2]):
    frame = spark.read.format("delta").load(path)
    frame.createOrReplaceTempView("t")
    rows = spark.sql(
        f"SELECT partition, count(*), count(DISTINCT offset), sum({number}), max(timestamp) < now() FROM t GROUP BY 1"
    )
    print(json.dumps([sorted(map(list, rows.collect())), frame.dtypes[-1]]))
"""


@pytest.fixture(scope="session")
def jars(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Delta's reader for our Spark, with commas between."""
    folder = tmp_path_factory.mktemp("jars")
    pom = Path(__file__).parent / "jvm" / "pom.xml"
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(pom), "dependency:copy-dependencies"]
    parts = ["-DincludeGroupIds=io.delta,org.antlr", f"-DoutputDirectory={folder}"]
    fetching.run([*command, *parts], each_s=500)
    return ",".join(str(path) for path in sorted(folder.glob("*.jar")))


def test_deltas_reader_for_spark_reads_the_archive(jars: str, storage: BareStorage, tmp_path: Path) -> None:
    topic = storage.create_topic("for-the-jvm", partitions=2)
    for partition in (0, 1):
        values = [(b"k", b'{"n": %d}' % number, DAY + number, (("h", b"x"),)) for number in range(30)]
        storage.append_batch(topic, partition, bytes(build(values)))
    tables = {"json": "n", "variant": "variant_get(json, '$.n', 'int')"}
    asked = []
    for schema, number in tables.items():
        path = tmp_path / schema
        archiver = Archiver(storage, topic, path, decoding=Decoding.of(schema))
        for start in range(0, 30, 10):
            archiver.archive((0, start, start + 10), (1, start, start + 10))
        maintenance.compact(ArchiveTable(Place.of(str(path))))
        asked += [str(path), number]
    command = [sys.executable, "-c", READER, jars, *asked]
    answer = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True).stdout
    rows = [[0, 30, 30, 435, True], [1, 30, 30, 435, True]]
    found = [json.loads(line) for line in answer.splitlines()[-2:]]
    assert found == [[rows, ["n", "bigint"]], [rows, ["json", "variant"]]]
