"""The archive's crash matrix: after a kill of any process at any step, each record is in the table once.

A real server with its Valkey, a real Spark; counted by pyarrow and by DuckDB. `make test LANE=long` takes a sample,
`make test LANE=archive` all of it.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from deltalake import DeltaTable
from tests.harness.processes import kill_session, of_session
from tests.harness.wire import Wire

from headrace.testing import Server

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(600)]

STEPS = ("started", "files written", "table committed", "group committed")
VICTIMS = ("driver", "jvm", "worker", "storage")
SAMPLE = [("driver", "table committed")]
DEFAULT_ROUNDS = 3
RECORDS = 100


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "victim" in metafunc.fixturenames:
        everything = [(victim, step) for victim in VICTIMS for step in STEPS]
        chosen = SAMPLE if metafunc.config.getoption("--crash-rounds") <= DEFAULT_ROUNDS else everything
        metafunc.parametrize(("victim", "step"), chosen)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        yield Path(made)


def send(server: Server, partition: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": server.kafka, "linger.ms": 5})
    for number in range(count):
        producer.produce("t", b"%d" % number, partition=partition)
    assert producer.flush(60) == 0


def kill(session: int, part: str) -> int:
    """SIGKILL to all processes of a session whose command line has a part; how many."""
    killed = 0
    for pid, command in list(of_session(session)):
        if part in command:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    return killed


def archive(settings: dict[str, Any], folder: Path, step: str = "", batch: int = 0) -> "subprocess.Popen[str]":
    command = [sys.executable, str(Path(__file__).with_name("archiver.py")), json.dumps(settings), step, str(batch)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # What a killed process leaves lying about is to vanish with the test's own folder.
        env=os.environ | {"TMPDIR": str(folder)},
    )


def test_each_record_is_in_the_table_once(victim: str, step: str, folder: Path) -> None:
    with Server(folder / "data") as server:
        admin = AdminClient({"bootstrap.servers": server.kafka})
        admin.create_topics([NewTopic("t", 2)])["t"].result(60)
        for partition in (0, 1):
            send(server, partition, RECORDS)
        settings = {
            "topics": ["t"],
            "table": str(folder / "table"),
            "redis": server.storage,
            "kafka": server.kafka,
            "group": "archive",
            "checkpoint": str(folder / "checkpoint"),
            "max_rows": 30,
        }
        with archive(settings, folder, step, 2) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == f"{step}\n"
            counts(folder / "table")
            if victim == "driver":
                assert kill_session(process.pid) > 1
                shutil.rmtree(folder / "checkpoint")
            elif victim == "storage":
                server.kill()
                server.kill_storage()
                server.start()
            else:
                assert kill(process.pid, {"jvm": "java", "worker": "pyspark.daemon"}[victim]) > 0
            # A partition more, which the run that goes on, or the next one, has to find.
            admin.create_partitions([NewPartitions("t", 3)])["t"].result(60)
            send(server, 2, RECORDS // 2)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write("go\n")
                process.stdin.close()
            status = process.wait(300)
            kill_session(process.pid)
        assert (status == 0) is (victim in {"worker", "storage"})
        with archive(settings, folder) as process:
            assert process.wait(300) == 0
        found = counts(folder / "table")
        assert found == {0: RECORDS, 1: RECORDS, 2: RECORDS // 2}
        with Wire(server.kafka) as wire:
            assert wire.committed("archive", "t") == RECORDS


def counts(table: Path) -> dict[int, int]:
    """Records by partition, each once, as two readers that are not Spark count them."""
    delta = DeltaTable(table)
    rows = delta.to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
    pairs = [(row["partition"], row["offset"]) for row in rows]
    assert len(pairs) == len(set(pairs)), "doubled"
    by_arrow = {partition: sum(1 for one, _ in pairs if one == partition) for partition in {one for one, _ in pairs}}
    by_duckdb: dict[int, int] = {}
    if delta.file_uris():
        query = 'SELECT partition, count(*), count(DISTINCT "offset"), max("offset") FROM read_parquet(?) GROUP BY 1'
        for partition, rows_of, distinct, last in duckdb.execute(query, [delta.file_uris()]).fetchall():
            assert rows_of == distinct == last + 1, f"partition {partition}: doubled or lost"
            by_duckdb[partition] = rows_of
    assert by_duckdb == by_arrow
    return by_arrow
