"""Spark against a server with TLS, logins and ACLs: errors name the missing right."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AclOperation, AdminClient
from deltalake import DeltaTable
from tests.harness.pages import BLOCK, guides
from tests.harness.secured import ESCAPED, PASSWORD, SecuredServer, secured_server

from headrace.client import options as client_options
from headrace.client.cluster import LATEST, Cluster
from headrace.client.errors import LoginRefused, OptionError, SparkError, StorageUnavailable
from headrace.client.offsets import Range, TopicPartition
from headrace.client.produce import Producer
from headrace.records.build import build
from headrace.spark import archive
from headrace.spark.source import options
from headrace.spark.source.groups import GroupCommitter
from headrace.spark.source.kafka_log import KafkaLog
from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.tasks import way, with_storage
from headrace.spark.source.topic_log import Subscription

from .conftest import run_out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    with secured_server(tmp_path_factory.mktemp("secured")) as made:
        made.add_user("etl")
        made.fill("flights", 2, [b"%d" % number for number in range(100)])
        made.fill("sums", 1, [])
        for name, operation in (("flights", AclOperation.READ), ("sums", AclOperation.WRITE)):
            made.allow("etl", operation, topic=name)
        made.allow("etl", AclOperation.READ, group="pipeline")
        made.allow("etl", AclOperation.READ, group="tables")
        yield made


def login(secured: SecuredServer, folder: Path, name: str = "etl", **given: str) -> dict[str, str]:
    """Options with the address of the server and a file with the login."""
    file = secured.properties(folder / f"{name}.properties", name, **given)
    return {client_options.SERVERS: secured.server.kafka, client_options.PROPERTIES: str(file)}


def parsed(secured: SecuredServer, folder: Path, name: str = "etl", **given: str) -> client_options.ClientOptions:
    found = client_options.parse(login(secured, folder, name, **given))
    assert found is not None
    return found


def positions(secured: SecuredServer, group: str) -> dict[int, int]:
    admin = AdminClient(secured.kafka())
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    return {found.partition: found.offset for found in answer[group].result(60).topic_partitions}


@pytest.mark.spark
def test_batches_streams_sinks_and_groups_with_a_login(
    secured: SecuredServer, spark: "SparkSession", tmp_path: Path
) -> None:
    source = {**login(secured, tmp_path), "subscribe": "flights"}
    batch = spark.read.format("headrace").options(**source).load().selectExpr("CAST(CAST(value AS STRING) AS INT) AS n")
    assert sorted(row.n for row in batch.collect()) == list(range(100))
    sink = {**login(secured, tmp_path), "topic": "sums"}
    total = batch.selectExpr("CAST(sum(n) AS STRING) AS value")
    total.write.format("headrace").options(**sink).mode("append").save()

    def stream(**more: str) -> "DataFrame":
        wanted = {**source, "startingOffsets": "earliest", **more}
        return spark.readStream.format("headrace").options(**wanted).load().select("value")

    for frame, name, into in (
        (stream(consumerGroup="pipeline"), "headrace.delta", {"path": str(tmp_path / "table")}),
        (stream(), "headrace", sink),
    ):
        run_out(frame.writeStream.format(name).options(**into, checkpointLocation=str(tmp_path / name)))
    assert DeltaTable(tmp_path / "table").count() == 100
    assert positions(secured, "pipeline") == {0: 50, 1: 50}
    admin = client_options.parse(login(secured, tmp_path, "admin", mechanism="PLAIN"))
    assert admin is not None
    with KafkaLog(admin, own=True) as log:
        place = TopicPartition("sums", 0)
        end = log.extents(log.topics(Subscription(names=("sums",))))[place].end
        found = [each.as_py() for rows in log.records("", Range(place, 0, end)) for each in rows.column("value")]
    assert sorted(found) == sorted([b"4950", *(b"%d" % number for number in range(100))])


@pytest.mark.spark
def test_what_the_guide_shows(secured: SecuredServer, spark: "SparkSession", tmp_path: Path) -> None:
    secured.fill("orders", 1, [b"one", b"two"])
    secured.fill("copies", 1, [])
    secured.allow("etl", AclOperation.READ, topic="orders")
    secured.allow("etl", AclOperation.READ, group="copy")
    secured.allow("etl", AclOperation.WRITE, topic="copies")
    chapter = guides("spark-logins")
    file = chapter.partition("```properties etl.properties\n")[2].partition("```")[0]
    login = file.replace("PASSWORD", ESCAPED).replace("certificates/ca.pem", str(secured.made.authority))
    (tmp_path / "etl.properties").write_text(login, "utf-8")
    [code] = [block["text"] for block in BLOCK.finditer(chapter) if block["kind"] == "python"]
    # The session was started elsewhere.
    for name in ("etl.properties", "checkpoints/copies"):
        code = code.replace(f'"{name}"', f'"{tmp_path / name}"')
    exec(code.replace("127.0.0.1:9093", secured.server.kafka), {"spark": spark})  # what the guide says
    assert positions(secured, "copy") == {0: 2}
    cluster = Cluster(parsed(secured, tmp_path, "admin"))
    assert cluster.offsets_at({TopicPartition("copies", 0): LATEST}) == {TopicPartition("copies", 0): 2}
    cluster.close()


@pytest.mark.spark
def test_an_archive_commits_its_group_with_a_login(
    secured: SecuredServer, spark: "SparkSession", tmp_path: Path
) -> None:
    password = (secured.server.data / "storage.password").read_text().strip()
    wanted: dict[str, Any] = {
        "topics": ("flights",),
        "table": str(tmp_path / "table"),
        "redis": secured.server.storage.replace("unix://", f"unix://:{password}@"),
        "kafka": secured.server.kafka,
        "group": "tables",
    }
    settings = archive.ArchiveSettings(**wanted, login=login(secured, tmp_path))
    assert archive.run(settings, once=True, spark=spark).rows == 100
    assert positions(secured, "tables") == {0: 50, 1: 50}
    for text in (repr(settings), repr(settings.server())):
        assert password not in text
        assert PASSWORD not in text
    with pytest.raises(SparkError, match="closed the connection"):
        archive.run(archive.ArchiveSettings(**wanted), once=True, spark=spark)


def attempts(secured: SecuredServer, folder: Path) -> Iterator[tuple[str, Any]]:
    """Return actions of an unauthorized user, with the missing right."""
    cluster = Cluster(parsed(secured, folder))
    place = TopicPartition("sums", 0)
    produced = Producer(cluster)
    with KafkaLog(cluster.options, own=True) as log:
        yield "Describe on topic 'hidden'", lambda: log.topics(Subscription(names=("hidden",)))
        yield "Read on topic 'sums'", lambda: list(log.records("", Range(place, 0, 1)))
        flights = TopicPartition("flights", 0)

        def write() -> None:
            produced.send(flights, bytes(build([(None, b"1", 0, ())])))
            produced.flush()

        yield "Write on topic 'flights'", write
        yield "Describe on group 'others'", lambda: GroupCommitter(cluster.options, "others").commit({flights: 1})
        yield "Read on topic 'sums'", lambda: GroupCommitter(cluster.options, "pipeline").commit({place: 1})
    cluster.close()


def test_a_refusal_names_the_right_and_the_resource(secured: SecuredServer, tmp_path: Path) -> None:
    secured.fill("hidden", 1, [b"1"])
    for right, attempt in attempts(secured, tmp_path):
        with pytest.raises(SparkError, match=rf"_AUTHORIZATION_FAILED: no right to it; it takes {right} \("):
            attempt()


def test_who_is_not_known_is_not_let_in(secured: SecuredServer, tmp_path: Path) -> None:
    # Tokens have tests of their own.
    for mechanism in sorted({*client_options.MECHANISMS} - {"OAUTHBEARER"}):
        wrong = parsed(secured, tmp_path, mechanism=mechanism, password="wrong")
        with pytest.raises(LoginRefused, match=r"refused 'etl'") as refused, KafkaLog(wrong, own=True) as log:
            log.topics(Subscription(names=("flights",)))
        assert "wrong" not in str(refused.value)
    file = secured.properties(tmp_path / "etl.properties", "etl")
    file.write_text(file.read_text().replace(str(secured.made.authority), str(secured.made.client)))
    stranger = client_options.parse(
        {client_options.SERVERS: secured.server.kafka, client_options.PROPERTIES: str(file)}
    )
    assert stranger is not None
    with pytest.raises(LoginRefused, match="is not trusted"), KafkaLog(stranger, own=True) as log:
        log.topics(Subscription(names=("flights",)))


def test_a_storage_address_grants_no_access(secured: SecuredServer, tmp_path: Path) -> None:
    with LogReader(secured.server.storage) as log, pytest.raises(StorageUnavailable, match="'redisPasswordFile'"):
        log.topics(Subscription(names=("flights",)))
    asking = {**login(secured, tmp_path, "admin"), "subscribe": "flights", "redis": "ask"}
    told = with_storage(options.parse(asking, default_redis=None))
    assert told.redis == secured.server.storage
    file = secured.server.data / "storage.password"
    allowed = with_storage(options.parse({**asking, "redisPasswordFile": str(file)}, default_redis=None))
    password = file.read_text().strip()
    for text in (repr(allowed), way(allowed)):
        assert password not in text
    assert way(allowed).startswith(f"straight from Redis at {secured.server.storage},")
    with LogReader(str(allowed.redis)) as log:
        assert log.topics(Subscription(names=("flights",)))["flights"].partitions == (0, 1)
    etl = options.parse({**login(secured, tmp_path), "subscribe": "flights"}, default_redis=None)
    assert way(with_storage(etl)) == f"through the Kafka protocol from {secured.server.kafka} as etl"
    assert password not in secured.server.log()
    assert password not in subprocess.run(["ps", "-wweo", "args"], capture_output=True, text=True, check=True).stdout
    # A user that may not read settings gets an error with the required right.
    with pytest.raises(LoginRefused, match="DescribeConfigs on the cluster"):
        with_storage(options.parse({**asking, **login(secured, tmp_path)}, default_redis=None))


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("a=b\n\n# c\n! d\n e : f \\\n   g\n", {"a": "b", "e": "f g"}),
        ("a b=c\nd\ne\\ f=\\u00e9\\t\\\\\n", {"a": "b=c", "d": "", "e f": "é\t\\"}),
        ("a=1\\\n#2\\\\\na:3", {"a": "3"}),
    ],
)
def test_files_are_read_as_java_reads_them(tmp_path: Path, text: str, settings: dict[str, str]) -> None:
    (tmp_path / "file").write_text(text, "utf-8")
    assert client_options.read_properties(str(tmp_path / "file")) == settings
    (tmp_path / "again").write_text(client_options.write_properties({"sasl": PASSWORD + "\n", "b": " c"}), "utf-8")
    assert client_options.read_properties(str(tmp_path / "again")) == {"sasl": PASSWORD + "\n", "b": " c"}


def test_a_file_that_cannot_be_used_is_one_line_without_what_is_in_it(tmp_path: Path) -> None:
    given = {client_options.SERVERS: "127.0.0.1:1", client_options.PROPERTIES: str(tmp_path / "file")}
    with pytest.raises(OptionError, match=r"file cannot be read: No such file"):
        client_options.parse(given)
    (tmp_path / "file").write_text("sasl.mechanisms=SECRET\n")
    with pytest.raises(OptionError, match=r"did you mean 'kafka.sasl.mechanism'\?$") as refused:
        client_options.parse(given)
    assert "SECRET" not in str(refused.value)
    (tmp_path / "file").write_text(f"bootstrap.servers=127.0.0.1:2\nclient.id=file{os.linesep}")
    found = client_options.parse({client_options.PROPERTIES: str(tmp_path / "file"), "kafka.client.id": "option"})
    assert found is not None
    assert (found.servers, found.client_id) == ((("127.0.0.1", 2),), "option")
