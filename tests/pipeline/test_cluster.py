"""The archive, topics, tables and a declared pipeline on a standalone cluster: a master and two workers."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from pyarrow import dataset
from tests.harness.processes import kill_session
from tests.harness.store import ObjectStore, object_store

from headrace import settings
from headrace.spark.java import find, write_launcher
from headrace.spark.pipeline import project
from headrace.testing import Server

pytestmark = [pytest.mark.spark, pytest.mark.spark_cluster, pytest.mark.timeout(1200)]

CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
ROWS = 1_000
WORKERS = {"127.0.0.2", "127.0.0.3"}
# Writes a topic, reads it into a table and archives it; which executors did it is in the first table.
PROGRAM = """
import json, sys
from pyspark.sql import functions as f
from headrace.spark import session
from headrace.spark.archive import ArchiveSettings, run

master, kafka, redis, table, archived, storage = sys.argv[1:]
spark = session.create("cluster", master=master, conf={"spark.executor.memory": "512m", "spark.cores.max": "2"})
where = {"kafka.bootstrap.servers": kafka}
rows = spark.range(1000).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value").repartition(4)
rows.write.format("headrace").options(**where, topic="copied").mode("append").save()

@f.udf("string")
def executor(_):
    import os
    return os.environ["SPARK_LOCAL_HOSTNAME"]

stream = spark.readStream.format("headrace").options(**where, subscribe="copied", startingOffsets="earliest").load()
found = stream.select(f.col("value").cast("string").cast("int").alias("n"), executor("value").alias("executor"))
query = found.writeStream.format("headrace.delta").option("checkpointLocation", table + "-checkpoint")
query.trigger(availableNow=True).start(table).awaitTermination()

archive = ArchiveSettings(topics=("copied",), table=archived, redis=redis, storage=json.loads(storage))
run(archive, once=True, spark=spark)
spark.stop()
"""


@contextmanager
def daemon(kind: str, host: str, folder: Path, told: str, *arguments: str) -> Iterator[str]:
    """A master or a worker; yields what it has said when it has started."""
    command = [str(CLASS), f"org.apache.spark.deploy.{kind}", "--host", host, "--port", "0", "--webui-port", "0"]
    home = folder / host
    home.mkdir()
    write_launcher(find(*settings.java_places()), home)
    environment = {
        **os.environ,
        "JAVA_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_HOSTNAME": host,
        "SPARK_WORKER_DIR": str(home / "work"),
        "PYSPARK_PYTHON": sys.executable,
    }
    log = home / "log"
    with (
        log.open("wb") as said,
        subprocess.Popen(
            [*command, *arguments], env=environment, stdout=said, stderr=said, start_new_session=True
        ) as process,
    ):
        try:
            while (found := re.search(told, log.read_text("utf-8", "replace"))) is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
                    raise AssertionError(log.read_text("utf-8", "replace")[-2000:])
            yield found[1]
        finally:
            kill_session(process.pid)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("cluster")
    own = ("--cores", "1", "--memory", "700m")
    registered = r"(Successfully registered)"
    with contextlib.ExitStack() as stack:
        started = daemon("master.Master", "127.0.0.1", folder, r"Starting Spark master at (spark://\S+)")
        url = stack.enter_context(started)
        for host in sorted(WORKERS):
            stack.enter_context(daemon("worker.Worker", host, folder, registered, *own, url))
        yield url


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as started:
        yield started


def create(broker: Server, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(name, partitions)])[name].result(10)


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def test_a_topic_is_written_read_and_archived(broker: Server, master: str, store: ObjectStore, scratch: Path) -> None:
    create(broker, "copied", 4)
    table, archived = str(scratch / "table"), "s3://lake/copied"
    run("-c", PROGRAM, master, broker.kafka, broker.storage, table, archived, json.dumps(store.options))
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert sorted(row["n"] for row in found) == list(range(ROWS))
    assert {row["executor"] for row in found} == WORKERS
    copied = DeltaTable(archived, storage_options=store.options).to_pyarrow_table(columns=["value"])
    assert sorted(map(int, copied.column("value").to_pylist())) == list(range(ROWS))


def test_a_declared_pipeline(broker: Server, master: str, scratch: Path) -> None:
    create(broker, "orders", 2)
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(ROWS):
        producer.produce("orders", json.dumps({"id": number}))
    assert producer.flush(10) == 0
    folder = scratch / "orders"
    project.create(folder, "orders", broker.kafka)
    with (folder / "conf" / "spark-defaults.conf").open("a") as defaults:
        defaults.write(f"spark.master {master}\nspark.executor.memory 512m\nspark.cores.max 2\n")
    assert "orders_silver" in run("-m", "headrace", "pipeline", "run", str(folder))
    silver = dataset.dataset(folder / "tables" / "orders_silver", format="parquet").to_table()
    assert sorted(silver.column("id").to_pylist()) == list(range(ROWS))
