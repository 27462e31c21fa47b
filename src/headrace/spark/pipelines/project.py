"""Create a pipeline project, with columns from the JSON values in a sample of a topic."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from headrace.client import options as client_options
from headrace.client.errors import SparkError
from headrace.client.offsets import Range
from headrace.spark.pipelines import environment
from headrace.spark.pipelines.environment import DEFAULTS, STATE
from headrace.spark.source.kafka_log import KafkaLog
from headrace.spark.source.topic_log import Subscription

_MOSTLY: Final = 0.8
"""Share of JSON values in the sample above which a topic counts as JSON."""
_MOST_COLUMNS: Final = 200


@dataclass(frozen=True)
class Column:
    """A field of values and its Spark type."""

    name: str
    type: str


def sampled_columns(values: Iterable[bytes | None]) -> list[Column]:
    """Return the fields of JSON objects in order of appearance, or none if most values are no objects.

    Spark ignores case, so only the first of equal names stays.
    """
    found: dict[str, str | None] = {}
    objects = total = 0
    for value in values:
        if value is None:
            continue
        total += 1
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            continue
        if isinstance(parsed, dict):
            objects += 1
            _widen(found, parsed)
    if not objects or objects < total * _MOSTLY:
        return []
    first: dict[str, Column] = {}
    for name, kind in found.items():
        # For a field that was always null.
        first.setdefault(name.lower(), Column(name, kind or "STRING"))
    return list(first.values())[:_MOST_COLUMNS]


def columns_ddl(found: Iterable[Column]) -> str:
    """Return the columns for Spark's `from_json`."""
    return ", ".join(f"{quoted(column.name)} {column.type}" for column in found)


def quoted(name: str) -> str:
    """Return a column's name quoted for SQL."""
    return f"`{name.replace('`', '``')}`"


def _widen(found: dict[str, str | None], row: Mapping[str, object]) -> None:
    for name, value in row.items():
        kind, known = _type(value), found.get(name)
        if known is None or kind is None or known == kind:
            found[name] = known or kind
        elif {known, kind} == {"BIGINT", "DOUBLE"}:
            found[name] = "DOUBLE"
        else:
            found[name] = "STRING"


def _type(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -(2**63) <= value < 2**63 else "STRING"
    return "DOUBLE" if isinstance(value, float) else "STRING"


SPEC: Final = "spark-pipeline.yml"
LOGIN: Final = "conf/login.properties"
_SAMPLE: Final = 500
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_PLACE: Final = ("partition", "offset", "timestamp")
"""Columns with a record's origin."""


class ProjectExists(SparkError):
    """The target of a new project exists."""


@dataclass(frozen=True)
class Project:
    """A created project."""

    folder: Path
    dataset: str
    """The name before `_bronze`, `_silver`, `_bad`, `_gold`."""
    columns: tuple[Column, ...]
    """Columns from the sample; none if the records are not JSON."""
    sampled: bool
    """Whether the topic had records."""


def create(folder: Path, topic: str, servers: str, login: Mapping[str, str] | None = None) -> Project:
    """Write a project for a topic to a new or empty folder.

    `servers` is `HOST:PORT`, several separated by commas. `login` has `kafka.*` options, written to a private file that
    git ignores.

    Raise ProjectExists, or UnknownTopic, ServerUnavailable, LoginRefused, OptionError from sampling the topic.
    """
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ProjectExists(f"{folder} is there and not empty: name a new folder")
    if _CONTROL.search(str(folder)):
        raise ProjectExists(f"{str(folder)!r} has control characters, which Spark's files of settings cannot hold")
    environment.make_link(folder)
    environment.forget_link(folder)
    values = _values(topic, {**(login or {}), client_options.SERVERS: servers})
    columns = sampled_columns(values)
    dataset = re.sub(r"\W", "_", topic, flags=re.ASCII).lower()
    if dataset[0].isdigit():
        dataset = f"t_{dataset}"
    place = _places(columns)
    files = {
        SPEC: _SPEC.format(name=_text_of(folder.name), storage=environment.storage(folder)),
        DEFAULTS: environment.written_out(folder),
        f"transformations/{dataset}_bronze.py": _BRONZE.format(
            servers=_text_of(servers),
            topic=_text_of(topic),
            dataset=dataset,
            # Absolute, because Spark's command runs the queries in another directory.
            login=_LOGIN_OPTION.format(file=_text_of(str(folder / LOGIN))) if login else "",
        ),
        f"transformations/{dataset}_silver.sql": _silver(dataset, columns, place) if columns else _text(dataset),
        f"transformations/{dataset}_gold.sql": _GOLD.format(dataset=dataset, timestamp=place["timestamp"]),
        ".gitignore": f"{STATE}/\ntables/\nderby.log\n{LOGIN}\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    if login:
        (folder / LOGIN).touch(mode=0o600)
        (folder / LOGIN).write_text(_LOGIN_HEAD + client_options.write_properties(_settings(login)), "utf-8")
    (folder / STATE / "events").mkdir(parents=True)
    return Project(folder, dataset, tuple(columns), bool(values))


def _text_of(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _settings(login: Mapping[str, str]) -> dict[str, str]:
    given = {name.removeprefix(client_options.PREFIX): value for name, value in login.items()}
    path = given.pop(client_options.PROPERTIES_FILE, None)
    settings = given if path is None else client_options.read_properties(path) | given
    return {
        name: str(Path(value).absolute()) if name.endswith(".location") else value for name, value in settings.items()
    }


def _values(topic: str, kafka: Mapping[str, str]) -> list[bytes | None]:
    options = client_options.parse(kafka)
    assert options is not None
    with KafkaLog(options, own=True) as log:
        extents = log.extents(log.topics(Subscription(names=(topic,))))
        found: list[bytes | None] = []
        for partition, extent in extents.items():
            share = Range(partition, extent.start, min(extent.end, extent.start + _SAMPLE))
            rows = (value for batch in log.records("", share) for value in batch.column("value").to_pylist())
            found += islice(rows, _SAMPLE)
        return found


def _silver(dataset: str, columns: Sequence[Column], place: Mapping[str, str]) -> str:
    corrupt = _free("_bad", (column.name for column in columns))
    chosen = [_as(f"parsed.{quoted(name)}", name, alias) for name, alias in _aliases(columns).items()]
    chosen += [_as(name, name, alias) for name, alias in place.items()]
    schema = f"{columns_ddl(columns)}, {corrupt} STRING".replace("\\", "\\\\").replace("'", "\\'")
    return _SILVER.format(dataset=dataset, schema=schema, corrupt=corrupt, columns=",\n  ".join(chosen))


def _aliases(columns: Sequence[Column]) -> dict[str, str]:
    names: dict[str, str] = {}
    for column in columns:
        plain = re.sub(r"\W", "_", column.name, flags=re.ASCII) or "_"
        names[column.name] = _free(plain, names.values())
    return names


def _places(columns: Sequence[Column]) -> dict[str, str]:
    taken = set(_aliases(columns).values())
    return {name: _free(name, taken) for name in _PLACE}


def _as(expression: str, name: str, alias: str) -> str:
    return expression if name == alias else f"{expression} AS {alias}"


def _text(dataset: str) -> str:
    return _SILVER_TEXT.format(dataset=dataset, place=", ".join(_PLACE))


def _free(name: str, taken: Iterable[str]) -> str:
    others = {one.lower() for one in taken}
    while name.lower() in others:
        name = f"_{name}"
    return name


_LOGIN_OPTION: Final = f"""
        .option("{client_options.PROPERTIES}", {{file}})"""
_LOGIN_HEAD: Final = "# How this project logs in: settings of Kafka's clients. Not for git.\n"
_SPEC: Final = """\
# Spark's own format: https://spark.apache.org/docs/latest/declarative-pipelines-programming-guide.html
# `headrace pipeline run` runs it, as does `SPARK_CONF_DIR=$PWD/conf PYSPARK_PYTHON=$(which python) spark-pipelines run`
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""
_BRONZE: Final = '''\
"""Every record of the topic, as it came."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

SERVERS = {servers}
TOPIC = {topic}


@dp.table
def {dataset}_bronze() -> DataFrame:
    return (
        SparkSession.active()
        .readStream.format("headrace")
        .option("kafka.bootstrap.servers", SERVERS){login}
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )
'''
_SILVER: Final = """\
-- The records in columns, typed from a sample of the topic: add to them, or make them narrower.
CREATE TEMPORARY VIEW {dataset}_parsed AS
SELECT
  *,
  from_json(
    CAST(value AS STRING),
    '{schema}',
    map('columnNameOfCorruptRecord', '{corrupt}')
  ) AS parsed
FROM STREAM({dataset}_bronze);

CREATE STREAMING TABLE {dataset}_silver AS
SELECT
  {columns}
FROM STREAM({dataset}_parsed)
WHERE parsed IS NOT NULL AND parsed.{corrupt} IS NULL;

-- Records that do not fit are in another table.
CREATE STREAMING TABLE {dataset}_bad AS
SELECT key, value, topic, partition, offset, timestamp
FROM STREAM({dataset}_parsed)
WHERE parsed IS NULL OR parsed.{corrupt} IS NOT NULL;
"""
_SILVER_TEXT: Final = """\
-- The records as text: there was no sample of JSON to make columns of.
CREATE STREAMING TABLE {dataset}_silver AS
SELECT CAST(key AS STRING) AS key, CAST(value AS STRING) AS value, {place}
FROM STREAM({dataset}_bronze);
"""
_GOLD: Final = """\
-- One row an hour, recomputed by every run.
CREATE MATERIALIZED VIEW {dataset}_gold AS
SELECT date_trunc('HOUR', {timestamp}) AS hour, count(*) AS records
FROM {dataset}_silver
GROUP BY date_trunc('HOUR', {timestamp});
"""
