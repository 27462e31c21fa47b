"""The archive, topics, tables and a declared pipeline on a standalone cluster: a master and two workers."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from pyarrow import dataset
from tests.harness.committed import committed
from tests.harness.processes import kill_session
from tests.harness.store import ObjectStore, object_store

from headrace.spark.java import find, write_launcher
from headrace.spark.pipelines import project
from headrace.testing import Server
from headrace.text.environment import java_places

pytestmark = [pytest.mark.spark, pytest.mark.spark_cluster, pytest.mark.timeout(1200)]

CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
ROWS = 1_000
WORKERS = {"127.0.0.2", "127.0.0.3"}
# Writes a topic, copies it into a table and, exactly once, into a topic, and archives it. Of each of the four, the task
# of partition 0 waits until Spark runs a copy of it on the other machine, and the copy for the task: both then write
# the same rows at once.
PROGRAM = """
import json, os, sys, time
from dataclasses import dataclass
from pyspark import TaskContext
from pyspark.sql import functions as f
from headrace.spark import session
from headrace.spark.archive import ArchiveSettings, run
from headrace.lakehouse.write.location import Place

master, workers, kafka, redis, folder, archived, storage = sys.argv[1:]
spark = session.create("cluster", master=master, conf={
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.efficiency.enabled": "false",
})

def waits_for_its_copy(work):
    task = TaskContext.get()
    if task is None or task.partitionId() != 0:
        return
    # Each waits for the other, whichever Spark tried first: who is done lets Spark kill the other one at any line.
    # What counts is the machine, not the number of the try: a try that was lost for another reason comes again.
    open(f"{folder}/{work} at {os.environ['SPARK_LOCAL_HOSTNAME']}", "a").close()
    while not all(os.path.exists(f"{folder}/{work} at {worker}") for worker in workers.split(",")):
        time.sleep(0.05)

class SlowPlace(Place):
    def create(self, relative):
        waits_for_its_copy("archive")
        return super().create(relative)

@dataclass(frozen=True, kw_only=True)
class SlowArchive(ArchiveSettings):
    def place(self, topic):
        return SlowPlace.of(self.table, self.storage)

@f.udf("string")
def slowly(value, work):
    waits_for_its_copy(work)
    return value

where = {"kafka.bootstrap.servers": kafka}
rows = spark.range(1000).selectExpr("CAST(id AS STRING) AS key").repartition(4)
rows = rows.select("key", slowly("key", f.lit("topic")).alias("value"))
rows.write.format("headrace").options(**where, topic="copied").mode("append").save()

stream = spark.readStream.format("headrace").options(**where, subscribe="copied", startingOffsets="earliest").load()
found = stream.select("partition", "offset", slowly(f.col("value").cast("string"), f.lit("table")).alias("value"))
query = found.writeStream.format("headrace.delta").option("checkpointLocation", f"{folder}/checkpoint")
query.trigger(availableNow=True).start(f"{folder}/table").awaitTermination()

once = stream.select(slowly(f.col("value").cast("string"), f.lit("once")).alias("value")).writeStream.format("headrace")
once = once.options(**where, topic="once", deliveryGuarantee="exactly-once")
once.option("checkpointLocation", f"{folder}/once").trigger(availableNow=True).start().awaitTermination()

archive = SlowArchive(topics=("copied",), table=archived, redis=redis, storage=json.loads(storage))
run(archive, once=True, spark=spark)
spark.stop()
"""


@contextmanager
def daemon(kind: str, host: str, folder: Path, told: str, *arguments: str) -> Iterator[str]:
    """A master or a worker; yields what it has said, in a whole line, when it has started."""
    command = [str(CLASS), f"org.apache.spark.deploy.{kind}", "--host", host, "--port", "0", "--webui-port", "0"]
    home = folder / host
    home.mkdir()
    write_launcher(find(*java_places()), home)
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
    registered = r"(Successfully registered) .*\n"
    with contextlib.ExitStack() as stack:
        started = daemon("master.Master", "127.0.0.1", folder, r"Starting Spark master at (spark://\S+)\n")
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
    admin.create_topics([NewTopic(name, partitions)])[name].result(60)


def everything(broker: Server, topic: str) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "check"})
    partitions = consumer.list_topics(topic, 60).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    rest = sum(consumer.get_watermark_offsets(TopicPartition(topic, number), 60)[1] for number in partitions)
    found: list[Message] = []
    while len(found) < rest:
        # What comes instead of a record is about a connection, which the client makes again.
        found += [message for message in consumer.consume(rest - len(found), 10) if message.error() is None]
    consumer.close()
    return found


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def test_copies_of_tasks_double_nothing_where_exactly_once_is_said(
    broker: Server, master: str, store: ObjectStore, scratch: Path
) -> None:
    create(broker, "copied", 4)
    create(broker, "once", 4)
    archived = "s3://lake/copied"
    workers, options = ",".join(WORKERS), json.dumps(store.options)
    run("-c", PROGRAM, master, workers, broker.kafka, broker.storage, str(scratch), archived, options)
    for work in ("topic", "table", "once", "archive"):
        assert {path.name for path in scratch.glob(f"{work} at *")} == {f"{work} at {worker}" for worker in WORKERS}
    in_topic = [
        (message.partition(), message.offset(), int(message.value() or b"")) for message in everything(broker, "copied")
    ]
    # At least once: what a copy of a task wrote stays.
    assert {value for *_, value in in_topic} == set(range(ROWS))
    tables = (
        DeltaTable(scratch / "table").to_pyarrow_table(),
        DeltaTable(archived, storage_options=store.options).to_pyarrow_table(columns=["partition", "offset", "value"]),
    )
    for table in tables:
        columns = (table.column(name).to_pylist() for name in ("partition", "offset", "value"))
        found = [(partition, offset, int(value)) for partition, offset, value in zip(*columns, strict=True)]
        assert sorted(found) == sorted(in_topic)
    visible = committed(broker.kafka, "once")
    assert visible == Counter(str(value) for *_, value in in_topic)
    print(
        f"{len(in_topic) - ROWS} of {ROWS} doubled in the topic, 0 in the tables and in the topic written exactly once"
    )


def test_a_declared_pipeline(broker: Server, master: str, scratch: Path) -> None:
    create(broker, "orders", 2)
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(ROWS):
        producer.produce("orders", json.dumps({"id": number}))
    assert producer.flush(60) == 0
    folder = scratch / "orders"
    project.create(folder, "orders", broker.kafka)
    with (folder / "conf" / "spark-defaults.conf").open("a") as defaults:
        defaults.write(f"spark.master {master}\nspark.executor.memory 512m\nspark.cores.max 2\n")
    assert "orders_silver" in run("-m", "headrace", "pipeline", "run", str(folder))
    silver = dataset.dataset(folder / "tables" / "orders_silver", format="parquet").to_table()
    assert sorted(silver.column("id").to_pylist()) == list(range(ROWS))
