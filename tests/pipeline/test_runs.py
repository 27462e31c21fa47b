"""A new project runs at once and a second time: by our command, and by Spark's own."""

import fcntl
import json
import os
import re
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic
from pyarrow import dataset
from tests.harness.secured import PASSWORD, secured_server

from headrace.testing import Server, server

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "spark-pipelines.md").read_text("utf-8")


def written_in_the_guide(language: str) -> str:
    """The guide's one piece of code in a language."""
    [code] = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    return str(code)


@pytest.fixture
def broker() -> Iterator[Server]:
    with server() as started:
        admin = AdminClient({"bootstrap.servers": started.kafka})
        for future in admin.create_topics([NewTopic("orders", 2), NewTopic("totals", 1)]).values():
            future.result(60)
        yield started


def produce(broker: Server, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number, value in enumerate(values):
        producer.produce("orders", value, partition=number % 2)
    assert producer.flush(60) == 0


def totals(broker: Server) -> int:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "check"})
    end = consumer.get_watermark_offsets(TopicPartition("totals", 0), 60)[1]
    consumer.close()
    return int(end)


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dataset.dataset(folder / "tables" / table, format="parquet").to_table().to_pylist()
    return found


def headrace(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "headrace", "pipeline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)


@contextmanager
def spark_connects_port() -> Iterator[None]:
    """Spark's own command has one port for all who run it on a machine."""
    with (Path(tempfile.gettempdir()) / "headrace-tests-15002").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def spark_pipelines(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a project by Spark's own command."""
    environment = {
        **os.environ,
        "SPARK_CONF_DIR": str(folder / "conf"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [str(Path(sysconfig.get_path("scripts")) / "spark-pipelines"), "run"]
    with spark_connects_port():
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=580, check=False
        )


@pytest.mark.spark
@pytest.mark.pipelines
@pytest.mark.timeout(1200)
def test_a_new_project_runs_at_once_and_a_second_time(broker: Server, tmp_path: Path) -> None:
    produce(broker, *(json.dumps({"id": n, "price": n / 2}) for n in range(100)))
    folder = tmp_path / "orders"
    made = headrace("init", str(folder), "--topic", "orders", "--bootstrap", broker.kafka)
    assert "orders_bronze, _silver (2 columns from a sample), _gold" in made.stdout, made.stderr
    sink = written_in_the_guide("python").replace("127.0.0.1:9092", broker.kafka)
    (folder / "transformations" / "sink.py").write_text(sink)
    (folder / "transformations" / "doubled.sql").write_text(written_in_the_guide("sql"))

    first = headrace("run", str(folder))
    assert first.returncode == 0, first.stderr
    table = {line.split()[0]: line.split()[1:] for line in first.stdout.splitlines() if line.strip()}
    assert table["orders_bronze"][:2] + table["orders_bronze"][-1:] == ["100", "100", "0"]
    assert table["orders_silver"][:2] == ["100", "100"]
    assert sorted(row["id"] for row in rows(folder, "orders_silver")) == list(range(100))
    assert totals(broker) == 100
    shown = " ".join(re.sub(r"<[^>]*>", " ", urlopen(f"{broker.http}/pipeline").read().decode()).split())
    assert re.search(r"orders done Flow State .* orders_bronze completed 100 100 \S+ s 0 ", shown), shown

    produce(broker, '{"id": 100, "price": 1}', "no json")
    plain = spark_pipelines(folder)
    assert plain.returncode == 0, plain.stderr
    assert sorted(row["id"] for row in rows(folder, "orders_silver")) == list(range(101))
    assert [row["value"] for row in rows(folder, "orders_bad")] == [b"no json"]
    assert sum(row["records"] for row in rows(folder, "orders_gold")) == 101
    assert totals(broker) == 101


@pytest.mark.spark
@pytest.mark.pipelines
@pytest.mark.timeout(1200)
def test_a_project_logs_in_by_a_file_that_git_leaves_out(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    login = tmp_path / "login.properties"
    with secured_server(tmp_path) as secured:
        secured.add_user("etl")
        secured.fill("orders", 1, [json.dumps({"id": n}).encode() for n in range(50)])
        secured.fill("totals", 1, [])
        secured.properties(login, "etl")
        asked = ("init", str(folder), "--topic", "orders", "--bootstrap", secured.server.kafka)
        refused = headrace(*asked, "--kafka-properties", str(login))
        assert "it takes Describe on topic 'orders' (headrace acls create)" in refused.stderr
        assert "Traceback" not in refused.stderr
        secured.allow("etl", AclOperation.READ, topic="orders")
        made = headrace(*asked, "--kafka-properties", str(login))
        assert "conf/login.properties has the login" in made.stdout, made.stderr
        (folder / "transformations" / "sink.py").write_text(SINK.format(login=login))
        with login.open("a") as file:
            file.write(f"bootstrap.servers={secured.server.kafka}\n")

        refused = headrace("run", str(folder))
        assert refused.returncode == 1
        assert "it takes Describe on topic 'totals'" in refused.stderr
        secured.allow("etl", AclOperation.WRITE, topic="totals")
        first = headrace("run", str(folder))
        assert first.returncode == 0, first.stderr
        assert re.search(r"^orders_bronze +50 +50 .* 0$", first.stdout, re.MULTILINE), first.stdout
        assert sorted(row["id"] for row in rows(folder, "orders_silver")) == list(range(50))

        producer = Producer(secured.kafka())
        producer.produce("orders", b'{"id": 50}')
        assert producer.flush(60) == 0
        plain = spark_pipelines(folder)
        assert plain.returncode == 0, plain.stderr
        assert sorted(row["id"] for row in rows(folder, "orders_silver")) == list(range(51))
        consumer = Consumer(secured.kafka() | {"group.id": "check"})
        assert consumer.get_watermark_offsets(TopicPartition("totals", 0), 60)[1] == 51
        consumer.close()
    # Nothing of the project has the password but the one file, and git does not see that.
    kept = folder / "conf" / "login.properties"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "conf/login.properties" in (folder / ".gitignore").read_text().splitlines()
    secret = PASSWORD.encode()
    told = (first.stdout + first.stderr + plain.stdout + plain.stderr).encode()
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path != kept}
    # In JAAS and in a file of properties it is escaped; its beginning has nothing to escape.
    assert [path for path, found in files.items() if secret in found or secret[:5] in found] == []
    assert secret[:5] in kept.read_bytes()
    assert secret[:5] not in told


SINK = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

dp.create_sink("totals", "headrace", {{"kafka.properties.file": "{login}", "topic": "totals"}})


@dp.append_flow(target="totals")
def to_totals():
    return SparkSession.active().readStream.table("orders_silver").selectExpr("CAST(id AS STRING) AS value")
"""


def test_what_cannot_run_is_one_line(tmp_path: Path) -> None:
    told = headrace("run", str(tmp_path))
    assert told.returncode == 1
    assert told.stderr == f"headrace: {tmp_path} has no spark-pipeline.yml: `headrace pipeline init` writes one\n"
