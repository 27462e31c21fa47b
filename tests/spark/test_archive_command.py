"""The command `headrace archive`: two processes, as users run it."""

import contextlib
import http.client
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AclOperation, AdminClient, NewPartitions
from deltalake import DeltaTable
from tests.harness.archive import told_of
from tests.harness.exposition import read
from tests.harness.secured import PASSWORD, secured_server
from tests.harness.storage import BareStorage

from headrace.cli import main
from headrace.metrics.runs import State

from .conftest import records

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_several_topics_and_what_it_answers_scrapes(
    storage: BareStorage, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, partitions in (("scraped", 2), ("unscraped", 1)):
        topic = storage.create_topic(name, partitions=partitions)
        for partition in range(partitions):
            storage.append(topic, partition, records(30))
    asked = ["archive", "--topic", "scraped,unscraped", "--table", str(tmp_path / "{topic}"), "--redis", storage.url]
    assert main.run([*asked, "--once", "--metrics", "127.0.0.1:0"]) == 0
    said = capfd.readouterr().err
    assert re.search(r"^\S+ starting Spark$", said, re.MULTILINE)
    assert re.search(r"^\S+ Spark 4\.\S+ on Java \S+ is up", said, re.MULTILINE)
    assert re.search(r"archived 90 \(\+90 at [\d,]+/s, 0\.0 MB in 3 files\), lag 0, 2 tables$", said, re.MULTILINE)
    assert re.search(r"^archived 90 records in .* s, 2 tables$", said, re.MULTILINE)
    # Spark's own daemon prints a traceback for each worker that still answers when its query has ended.
    assert not re.search(r'^  File "[^"]*/headrace/(?![^"]*/pyspark/)', said, re.MULTILINE), said
    assert [DeltaTable(tmp_path / name).count() for name in ("scraped", "unscraped")] == [60, 30]
    address = re.search(r"^metrics at http://(\S+)/metrics$", said, re.MULTILINE)
    assert address is not None, said
    # It answers for as long as the process runs.
    connection = http.client.HTTPConnection(address[1], timeout=60)
    connection.request("GET", "/metrics")
    samples = read(connection.getresponse().read())
    connection.close()
    guide = (Path(__file__).parents[2] / "docs/guides/monitoring.md").read_text("utf-8")
    for name in ("lag", "fresh_timestamp_seconds"):
        assert f"`headrace_archive_{name}`" in guide
    found = {name: value for (name, labels), value in samples.items() if labels == {("topic", "scraped")}}
    assert (found["headrace_archive_records_total"], found["headrace_archive_lag"]) == (60, 0)
    # The same count is what the console shows.
    shown = told_of(storage.url, "scraped")
    assert (shown.state, shown.rows, shown.lag, shown.table) == (State.DONE, 60, 0, str(tmp_path / "scraped"))


@pytest.mark.long
def test_it_logs_in_by_files_alone(tmp_path: Path) -> None:
    with secured_server(tmp_path) as secured:
        secured.add_user("etl")
        secured.fill("flights", 1, [b"%d" % number for number in range(40)])
        admin = AdminClient(secured.kafka())
        # One that has nothing yet gets no position.
        admin.create_partitions([NewPartitions("flights", 2)])["flights"].result(60)
        secured.allow("etl", AclOperation.READ, topic="flights")
        secured.allow("etl", AclOperation.READ, group="tables")
        storage = secured.server.storage
        command = [sys.executable, "-m", "headrace", "archive", "--topic", "flights", "--table", str(tmp_path / "t")]
        command += ["--redis", storage, "--group", "tables", "--once", "--kafka-properties"]
        command += [str(secured.properties(tmp_path / "login", "etl"))]
        environment = os.environ | {"HEADRACE_BOOTSTRAP": secured.server.kafka}
        refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert refused.stderr.splitlines()[-1].startswith(f"headrace: storage at {storage}: ")
        assert "(the archive: --redis-password-file)" in refused.stderr
        password = secured.server.data / "storage.password"
        command += ["--redis-password-file", str(password)]
        listed = ""
        told = subprocess.PIPE
        with subprocess.Popen(command, env=environment, stdout=told, stderr=told, text=True) as process:
            while process.poll() is None:
                listed += subprocess.run(["ps", "-wweo", "args"], capture_output=True, text=True, check=True).stdout
                with contextlib.suppress(subprocess.TimeoutExpired):  # its own start has the cores in between
                    process.wait(0.1)
            output, said = process.communicate()
        assert (process.returncode, output) == (0, ""), said
        last, end = said.splitlines()[-2:]
        assert "archived 40 (+40 at " in last
        assert last.endswith(", lag 0, table version 1")
        assert end.startswith("archived 40 records in ")
        assert DeltaTable(tmp_path / "t").count() == 40
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("tables")])["tables"].result(60)
        assert {found.partition: found.offset for found in answer.topic_partitions} == {0: 40}
        assert str(password) in listed, "its command lines were among those listed"
        # Its end: what is before that is written in other ways where it is quoted, or where the locale is C.
        for secret in (PASSWORD[-4:], password.read_text().strip()):
            assert secret not in listed
            assert secret not in said


def test_what_cannot_work_is_one_line(storage: BareStorage, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    storage.create_topic("there")
    table = ["--table", str(tmp_path / "t"), "--redis", storage.url]
    for arguments, status, line in (
        (["--topic", "nowhere", *table], 4, "headrace: no topic 'nowhere' in the storage at "),
        (["--topic", "there,nowhere", *table], 1, "headrace: a table has one topic: put {topic} where"),
        (["--topic", "there", "--pattern", "x", *table], 2, "headrace archive: name the topics with --topic, or give"),
    ):
        assert main.run(["archive", *arguments]) == status
        told = [text for text in capfd.readouterr().err.splitlines() if not text.endswith("starting Spark")]
        assert len(told) == 1
        assert told[0].startswith(line)
    assert list(tmp_path.iterdir()) == [], "nothing was made"
