"""A new project from a topic's sample, what is said before a run, and what Spark's event log says after it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.command import Status
from headrace.cli.main import root, run
from headrace.client.errors import UnknownTopic
from headrace.client.offsets import TopicPartition
from headrace.metrics.runs import TopicEnds
from headrace.spark.pipelines import check, environment, project, status
from headrace.spark.pipelines.project import Column
from headrace.testing import Server

JARLESS = "use format 'headrace', which reads any Kafka broker without a jar"

UNKNOWN = "unknown option 'kafka.bootstrap.server' of format 'headrace'; did you mean 'kafka.bootstrap.servers'?"


def fill(broker: Server, name: str, *values: bytes) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(name, 1)])[name].result(60)
    producer = Producer({"bootstrap.servers": broker.kafka})
    for value in values:
        producer.produce(name, value)
    assert producer.flush(60) == 0


def test_columns_come_from_a_sample() -> None:
    values = [
        b'{"id": 1, "price": 2, "open": true, "note": null, "tags": ["a"]}',
        b'{"id": 2, "price": 2.5, "mixed": 1, "ID": "another"}',
        b'{"mixed": "one", "big": 99999999999999999999}',
        None,
        b'{"`odd`": 1}',
    ]
    found = project.sampled_columns(values)
    assert found == [
        Column("id", "BIGINT"),
        Column("price", "DOUBLE"),
        Column("open", "BOOLEAN"),
        Column("note", "STRING"),
        Column("tags", "STRING"),
        Column("mixed", "STRING"),
        Column("big", "STRING"),
        Column("`odd`", "BIGINT"),
    ]
    assert project.columns_ddl(found[-1:]) == "```odd``` BIGINT"
    assert project.sampled_columns([b"text", b"{}", b"more"]) == []
    assert project.sampled_columns([b"[" * 100_000]) == []


def test_a_project_names_its_columns_as_a_catalog_takes_them(broker: Server, tmp_path: Path) -> None:
    fill(broker, "1.odd-names", b"""{"timestamp": 1, "it's a \\\\ name": 2, "_bad": 3, "_timestamp": 4}""")
    made = project.create(tmp_path / "new", "1.odd-names", broker.kafka)
    assert made.dataset == "t_1_odd_names"
    silver = (tmp_path / "new" / "transformations" / "t_1_odd_names_silver.sql").read_text()
    assert r"'`timestamp` BIGINT, `it\'s a \\ name` BIGINT, `_bad` BIGINT, `_timestamp` BIGINT, __bad STRING'" in silver
    assert "parsed.`timestamp`,\n  parsed.`it's a \\ name` AS it_s_a___name,\n" in silver
    assert "partition,\n  offset,\n  timestamp AS __timestamp\n" in silver
    assert (
        "date_trunc('HOUR', __timestamp)"
        in (tmp_path / "new" / "transformations" / "t_1_odd_names_gold.sql").read_text()
    )


PROJECT = """
import os
SERVERS = os.environ.get("ORDERS_SERVERS", "{servers}")
def a():
    return (
        spark.readStream.format("headrace").option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", "told,missing").load()
    )
def b():
    return spark.readStream.format("kafka").load()
dp.create_sink("out", "headrace", {{"kafka.bootstrap.servers": SERVERS, "topic": "nowhere"}})
def c(topic):
    options = spark.readStream.format("headrace")
    options.option("subscribe", topic)
    return options.options(**{{"kafka.bootstrap.servers": SERVERS, "subscribe": "told"}}).load()
def d():
    return spark.read.format("headrace").option("kafka.bootstrap.server", SERVERS).option("subscribe", "told").load()
"""


def test_missing_parts_of_a_dry_run_are_reported(broker: Server, tmp_path: Path) -> None:
    fill(broker, "told", b"{}", b"{}")
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "all.py").write_text(PROJECT.format(servers=broker.kafka), "utf-8")
    assert set(check.problems(tmp_path, {})) == {
        f"transformations/all.py:6: no topic 'missing' at {broker.kafka}",
        f"transformations/all.py:10: format 'kafka' needs a jar: {JARLESS}",
        f"transformations/all.py:11: no topic 'nowhere' at {broker.kafka}",
        f"transformations/all.py:17: {UNKNOWN}",
    }
    jars = {"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.1"}
    assert not any("jar" in problem for problem in check.problems(tmp_path, jars))
    assert check.ends(tmp_path, ["told", "nowhere"]) == {TopicPartition("told", 0): 2}
    elsewhere = next(check.format_uses(tmp_path, {"ORDERS_SERVERS": "elsewhere:1"}))
    assert elsewhere.options["kafka.bootstrap.servers"] == "elsewhere:1"


def test_a_projects_own_settings_come_first(tmp_path: Path) -> None:
    written = environment.written_out(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / environment.DEFAULTS).write_text(written)
    assert environment.own(tmp_path) == environment.settings(tmp_path)
    (tmp_path / environment.DEFAULTS).write_text("# mine\nspark.sql.warehouse.dir  s3a://tables\n\n")
    assert environment.settings(tmp_path)["spark.sql.warehouse.dir"] == "s3a://tables"


def test_the_event_log_says_what_flows_did() -> None:
    progress = {
        "Event": "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent",
        "progress": {
            "id": "one",
            "name": "spark_catalog.default.orders",
            "numInputRows": None,
            "durationMs": {"triggerExecution": 1500},
            "sources": [{"numInputRows": 40, "endOffset": '{"t":{"0":40,"id":"5c2d"}}', "latestOffset": None}],
            "observedMetrics": {
                "quality": {"values": [2, 0.5], "schema": {"fields": [{"name": "bad"}, {"name": "share"}]}}
            },
        },
    }
    job = {"Event": "SparkListenerJobStart", "Stage IDs": [3, 4], "Properties": {"sql.streaming.queryId": "one"}}
    other = {"Event": "SparkListenerJobStart", "Stage IDs": [5], "Properties": {}}

    def task(stage: int, rows: int, reason: str = "Success") -> dict[str, Any]:
        metrics = {"Output Metrics": {"Records Written": rows}}
        return {
            "Event": "SparkListenerTaskEnd",
            "Stage ID": stage,
            "Task End Reason": {"Reason": reason},
            "Task Metrics": metrics,
        }

    events = [job, other, task(3, 30), task(4, 8), task(4, 8, "TaskKilled"), task(5, 99), progress, progress]
    lines = [json.dumps(event) for event in events]
    [flow] = status.flows([*lines, lines[-1][:-20]])
    assert (flow.name, flow.read, flow.written, flow.batches, flow.seconds) == ("orders", 80, 38, 2, 3.0)
    assert flow.observed == {"quality": {"bad": 4, "share": 0.5}}
    ends = {TopicPartition("t", 0): 50, TopicPartition("t", 1): 3, TopicPartition("u", 0): 9}
    assert flow.behind(ends) == 13
    assert flow.behind({TopicPartition("u", 0): 9}) is None
    assert flow.told(ends, "completed").topics == (TopicEnds(topic="t", id="5c2d", ends={0: 40}),)


def test_a_project_is_not_written_over_something(broker: Server, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    told = CliRunner().invoke(root, ["pipeline", "init", str(tmp_path), "--topic", "told", "--bootstrap", broker.kafka])
    assert told.exit_code == 1
    assert "is there and not empty" in str(told.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    with pytest.raises(UnknownTopic, match="no topic 'nowhere'"):
        project.create(tmp_path / "new", "nowhere", broker.kafka)


def test_a_missing_resource_has_the_same_exit_code_for_every_command(
    broker: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = ["pipeline", "init", str(tmp_path / "new"), "--topic", "nowhere", "--bootstrap"]
    assert run([*begun, broker.kafka]) == Status.MISSING
    told = capsys.readouterr().err
    assert "no topic 'nowhere'" in told
    assert "`headrace topics list` shows the existing ones" in told
    assert run([*begun, "127.0.0.1:1"]) == Status.UNREACHABLE


def test_a_failure_is_one_line_of_what_spark_says() -> None:
    said = [
        "2026-11-22 04:34:17: Flow 'spark_catalog.default.a' has FAILED.",
        "Traceback (most recent call last):",
        '  File "client/cluster.py", line 192, in _topics',
        "headrace.client.errors.UnknownTopic: no topic 'nowhere' at 127.0.0.1:41447",
        " SQLSTATE: 38000",
        "pyspark.errors.exceptions.connect.StreamingQueryException: [STREAM_FAILED] Query terminated",
        "Thread State: RUNNABLE",
    ]
    assert status.failure(said) == "no topic 'nowhere' at 127.0.0.1:41447"
    assert status.failure([*said[:3], *said[4:]]) == "[STREAM_FAILED] Query terminated"
    assert status.failure(["killed"]) == "killed"


def test_a_project_in_a_hostile_folder_is_given_a_plain_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    plain, hostile, colon = tmp_path / "orders", tmp_path / "a b", tmp_path / "a:b"
    assert environment.plain_path(plain) == plain
    environment.make_link(plain)
    assert not (tmp_path / "state").exists()
    link = environment.plain_path(hostile)
    for _ in range(2):
        environment.make_link(hostile)
        assert link.readlink() == hostile
    settings = environment.settings(hostile)
    assert settings["spark.sql.warehouse.dir"] == f"file://{link}/tables"
    assert f"databaseName={link}/.pipeline/catalog;" in settings["spark.hadoop.javax.jdo.option.ConnectionURL"]
    assert environment.storage(hostile) == f"file://{link}/.pipeline/storage"
    # Derby opens no database again whose own path has a colon.
    outside = environment.catalog_path(colon)
    assert outside == environment.plain_path(colon).with_name(f"{environment.plain_path(colon).name}-catalog")
    (outside / "seg0").mkdir(parents=True)
    environment.forget_link(colon)
    assert not outside.exists()
    environment.forget_link(hostile)
    link.unlink()
    link.mkdir()
    with pytest.raises(environment.NoPlainPath, match="Spark has made a folder there: move it away with `mv "):
        environment.make_link(hostile)
    link.rmdir()
    link.symlink_to(plain)
    with pytest.raises(environment.NoPlainPath, match=r"leads to .*/orders: remove it"):
        environment.make_link(hostile)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "my state"))
    with pytest.raises(environment.NoPlainPath, match="set XDG_STATE_HOME to a folder without them"):
        environment.plain_path(hostile)
    with pytest.raises(project.ProjectExists, match="has control characters"):
        project.create(tmp_path / "a\nb", "t", "127.0.0.1:1")
