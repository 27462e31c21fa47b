"""What Spark's dry run misses, topics that do not exist and formats whose jars are not there; and where logs end."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.client import options as client_options
from headrace.client.errors import SparkError, UnknownTopic
from headrace.client.offsets import TopicPartition
from headrace.client.options import ClientOptions
from headrace.spark.pipelines import format_usage
from headrace.spark.pipelines.format_usage import Use
from headrace.spark.source.kafka_log import KafkaLog
from headrace.spark.source.topic_log import Subscription

_JARS: Final = {
    "kafka": "use format 'headrace', which reads any Kafka broker without a jar",
    "delta": "use format 'headrace.delta' to write",
    "iceberg": "set spark.jars.packages",
    "avro": "set spark.jars.packages",
}


def problems(folder: Path, defaults: Mapping[str, str]) -> list[str]:
    """One line for each thing that a run would fail on; `defaults` are the project's Spark settings."""
    found = []
    jars = "spark.jars" in defaults or "spark.jars.packages" in defaults
    for use in format_usage.of_project(folder, os.environ):
        where = f"{use.file.relative_to(folder)}:{use.line}"
        if use.format in _JARS and not jars:
            found.append(f"{where}: format {use.format!r} needs a jar: {_JARS[use.format]}")
        elif use.format == "headrace":
            found += [f"{where}: {problem}" for problem in _missing(use)]
    return found


def clusters(folder: Path) -> list[ClientOptions]:
    """The clusters that the project says its topics are in."""
    found: dict[ClientOptions, None] = {}
    for use in format_usage.of_project(folder, os.environ):
        if use.format == "headrace":
            with suppress(SparkError):
                cluster = _cluster(use)
                if cluster is not None:
                    found[cluster] = None
    return list(found)


def ends(folder: Path, topics: Iterable[str]) -> dict[TopicPartition, int]:
    """Where the logs of these topics end now; without those of which the project does not say where they are."""
    found: dict[TopicPartition, int] = {}
    named: dict[str, ClientOptions] = {}
    clusters: dict[ClientOptions, None] = {}
    for use in format_usage.of_project(folder, os.environ):
        if use.format != "headrace":
            continue
        with suppress(SparkError):  # the run is over: what it did is told nevertheless
            cluster = _cluster(use)
            if cluster is not None:
                clusters[cluster] = None
                named |= dict.fromkeys(use.topics, cluster)
    only = next(iter(clusters)) if len(clusters) == 1 else None
    for topic in topics:
        place = named.get(topic, only)
        if place is None:
            continue
        with suppress(SparkError), KafkaLog(place, own=True) as log:
            extents = log.extents(log.topics(Subscription(names=(topic,))))
            found |= {partition: extent.end for partition, extent in extents.items()}
    return found


def _missing(use: Use) -> Iterator[str]:
    try:
        cluster = _cluster(use)
        if cluster is None:
            return
        with KafkaLog(cluster, own=True) as log:
            for name in use.topics:
                try:
                    log.topics(Subscription(names=(name,)))
                except UnknownTopic as error:
                    yield str(error)
    except SparkError as error:
        yield str(error)


def _cluster(use: Use) -> ClientOptions | None:
    """The cluster that its options name; None where they do not say. Raises OptionError for options that do not fit."""
    kafka = {name: value for name, value in use.options.items() if name.startswith(client_options.PREFIX)}
    if client_options.SERVERS in kafka or client_options.PROPERTIES in kafka:
        return client_options.parse(kafka)
    if kafka:
        client_options.parse({**kafka, client_options.SERVERS: "computed:1"})  # whether the others are known
    return None
