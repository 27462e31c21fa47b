"""A new project runs at once and a second time: by our command, and by Spark's own."""

import fcntl
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AclOperation
from pyarrow import dataset
from tests.harness.secured import PASSWORD, SecuredServer, secured_server

from headrace.testing import Server

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "spark-pipelines.md").read_text("utf-8")


def written_in_the_guide(language: str) -> str:
    """The guide's one piece of code in a language."""
    [code] = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    return str(code)


def sink(login: Path) -> str:
    """The guide's sink, on a server that takes a login."""
    open_to_all = '{"kafka.bootstrap.servers": SERVERS, "topic": "totals"}'
    code = written_in_the_guide("python")
    assert open_to_all in code
    return code.replace(open_to_all, f'{{"kafka.properties.file": "{login}", "topic": "totals"}}')


def totals(secured: SecuredServer) -> int:
    consumer = Consumer(secured.kafka() | {"group.id": "check"})
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
    """Spark's own command has one port for all runs on a machine."""
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
def test_a_new_project_runs_at_once_and_a_second_time(tmp_path: Path) -> None:
    """With a login, in a file that git leaves out. It differs from one without a login by an option of its source."""
    folder = tmp_path / "orders"
    login = tmp_path / "login.properties"
    with secured_server(tmp_path) as secured:
        secured.add_user("etl")
        secured.fill("orders", 2, [json.dumps({"id": n, "price": n / 2}).encode() for n in range(100)])
        secured.fill("totals", 1, [])
        secured.properties(login, "etl")
        asked = ("init", str(folder), "--topic", "orders", "--bootstrap", secured.server.kafka)
        refused = headrace(*asked, "--kafka-properties", str(login))
        assert "it takes Describe on topic 'orders' (headrace acls create)" in refused.stderr
        assert "Traceback" not in refused.stderr
        secured.allow("etl", AclOperation.READ, topic="orders")
        made = headrace(*asked, "--kafka-properties", str(login))
        assert "conf/login.properties has the login" in made.stdout, made.stderr
        assert "orders_bronze, _silver (2 columns from a sample), _gold" in made.stdout
        (folder / "transformations" / "sink.py").write_text(sink(login))
        (folder / "transformations" / "doubled.sql").write_text(written_in_the_guide("sql"))
        with login.open("a") as file:
            file.write(f"bootstrap.servers={secured.server.kafka}\n")

        refused = headrace("run", str(folder))
        assert refused.returncode == 1
        assert "it takes Describe on topic 'totals'" in refused.stderr
        secured.allow("etl", AclOperation.WRITE, topic="totals")
        first = headrace("run", str(folder))
        assert first.returncode == 0, first.stderr
        table = {line.split()[0]: line.split()[1:] for line in first.stdout.splitlines() if line.strip()}
        assert table["orders_bronze"][:2] + table["orders_bronze"][-1:] == ["100", "100", "0"]
        assert table["orders_silver"][:2] == ["100", "100"]
        assert sorted(row["id"] for row in rows(folder, "orders_silver")) == list(range(100))
        assert totals(secured) == 100

        producer = Producer(secured.kafka())
        for value in ('{"id": 100, "price": 1}', "no json"):
            producer.produce("orders", value)
        assert producer.flush(60) == 0
        plain = spark_pipelines(folder)
        assert plain.returncode == 0, plain.stderr
        assert sorted(row["id"] for row in rows(folder, "orders_silver")) == list(range(101))
        assert [row["value"] for row in rows(folder, "orders_bad")] == [b"no json"]
        assert sum(row["records"] for row in rows(folder, "orders_gold")) == 101
        assert totals(secured) == 101
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


@pytest.mark.spark
@pytest.mark.pipelines
@pytest.mark.timeout(1200)
def test_a_project_in_a_folder_of_a_hostile_name(
    broker: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs read every record once, and all files are in the project's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    name = "a b%20c#d+e?f&g:h=i;'j\"é日[k]{l}*\\m"
    folder = tmp_path / name / "own"
    producer = Producer({"bootstrap.servers": broker.kafka})

    def fill(first: int) -> None:
        for number in range(first, first + 50):
            producer.produce("hostile-folder", json.dumps({"id": number}))
        assert producer.flush(60) == 0

    fill(0)
    made = headrace("init", str(folder), "--topic", "hostile-folder", "--bootstrap", broker.kafka)
    assert shlex.split(made.stdout.rpartition("Run it: ")[2]) == ["headrace", "pipeline", "run", str(folder)]
    for first in (0, 50):
        if first:
            fill(first)
        ran = headrace("run", str(folder))
        assert ran.returncode == 0, ran.stderr
        table = {line.split()[0]: line.split()[1:] for line in ran.stdout.splitlines() if line.strip()}
        assert table["hostile_folder_bronze"][:2] == ["50", "50"]
        assert sorted(row["id"] for row in rows(folder, "hostile_folder_silver")) == list(range(first + 50))
    assert {path.name for path in tmp_path.iterdir()} == {name, "state"}
    assert {path.name for path in folder.parent.iterdir()} == {"own"}
    made_here = {".pipeline", ".gitignore", "conf", "derby.log", "spark-pipeline.yml", "tables", "transformations"}
    assert {path.name for path in folder.iterdir()} == made_here
    assert (folder / ".pipeline" / "storage" / "_checkpoints").is_dir()


def test_a_project_that_an_earlier_version_wrote_for_another_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    (folder / "transformations").mkdir(parents=True)
    storage = (folder / ".pipeline" / "storage").as_uri()
    (folder / "spark-pipeline.yml").write_text(f"name: a b\nstorage: {storage}\nlibraries: []\n")
    told = headrace("run", str(folder))
    assert told.returncode == 1
    assert "an earlier version wrote this project for other folders" in told.stderr
    assert "tables in" not in told.stderr
    tables, checkpoints = tmp_path / "a%20b" / "tables", tmp_path / "a%2520b" / ".pipeline" / "storage"
    tables.mkdir(parents=True)
    checkpoints.mkdir(parents=True)
    told = headrace("run", str(folder))
    assert f"It has tables in {tables} and checkpoints in {checkpoints}, which stay as they are" in told.stderr
    assert "Traceback" not in told.stderr


def test_what_cannot_run_is_one_line(tmp_path: Path) -> None:
    told = headrace("run", str(tmp_path))
    assert told.returncode == 1
    assert told.stderr == f"headrace: {tmp_path} has no spark-pipeline.yml: `headrace pipeline init` writes one\n"
