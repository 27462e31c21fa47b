"""Find errors that Spark's dry run misses: missing topics and jars. Also find log ends.

A project's Python files are parsed, not run. Only literals, module constants, `os.environ["X"]` and
`os.environ.get("X", "otherwise")` are resolved. Spark reports errors in other values later.
"""

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.client import options as client_options
from headrace.client.errors import SparkError, UnknownTopic
from headrace.client.offsets import TopicPartition
from headrace.client.options import ClientOptions
from headrace.spark.source.kafka_log import KafkaLog
from headrace.spark.source.topic_log import Subscription

_JARS: Final = {
    "kafka": "use format 'headrace', which reads any Kafka broker without a jar",
    "delta": "use format 'headrace.delta' to write",
    "iceberg": "set spark.jars.packages",
    "avro": "set spark.jars.packages",
}


@dataclass(frozen=True)
class Use:
    """A format with its options."""

    file: Path
    line: int
    format: str
    options: Mapping[str, str]
    """Names in lower case."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topics to read or write."""
        named = self.options.get("subscribe") or self.options.get("topic") or ""
        return tuple(name.strip() for name in named.split(",") if name.strip())


def problems(folder: Path, defaults: Mapping[str, str]) -> list[str]:
    """Return one line for each expected failure. `defaults` are Spark settings."""
    found = []
    jars = "spark.jars" in defaults or "spark.jars.packages" in defaults
    for use in format_uses(folder, os.environ):
        where = f"{use.file.relative_to(folder)}:{use.line}"
        if use.format in _JARS and not jars:
            found.append(f"{where}: format {use.format!r} needs a jar: {_JARS[use.format]}")
        elif use.format == "headrace":
            found += [f"{where}: {problem}" for problem in _missing(use)]
    return found


def clusters(folder: Path) -> list[ClientOptions]:
    """Return the clusters of the project's topics."""
    found: dict[ClientOptions, None] = {}
    for use in format_uses(folder, os.environ):
        if use.format == "headrace":
            with suppress(SparkError):
                cluster = _cluster(use)
                if cluster is not None:
                    found[cluster] = None
    return list(found)


def ends(folder: Path, topics: Iterable[str]) -> dict[TopicPartition, int]:
    """Return the topics' log ends, where the cluster is known."""
    found: dict[TopicPartition, int] = {}
    named: dict[str, ClientOptions] = {}
    clusters: dict[ClientOptions, None] = {}
    for use in format_uses(folder, os.environ):
        if use.format != "headrace":
            continue
        with suppress(SparkError):  # the run's result is reported anyway
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
    kafka = {name: value for name, value in use.options.items() if name.startswith(client_options.PREFIX)}
    if client_options.SERVERS in kafka or client_options.PROPERTIES in kafka:
        return client_options.parse(kafka)
    if kafka:
        client_options.parse({**kafka, client_options.SERVERS: "computed:1"})
    return None


_Names = Mapping[str, str | None]


def format_uses(folder: Path, environment: Mapping[str, str]) -> Iterator[Use]:
    """Yield the formats in a project's Python files."""
    for file in sorted((folder / "transformations").rglob("*.py")):
        try:
            tree = ast.parse(file.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # Spark reports it
        yield from _Reader(environment).of_file(file, tree)


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._names: dict[str, str] = {}

    def of_file(self, file: Path, tree: ast.Module) -> Iterator[Use]:
        for node in tree.body:
            if isinstance(node, ast.Assign) and (value := self._text(node.value)) is not None:
                self._names |= {target.id: value for target in node.targets if isinstance(target, ast.Name)}
        inner: set[ast.AST] = set()
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and call not in inner:
                chain = list(_chain(call))
                inner.update(chain)
                named, options = self._of_chain(chain)
                if named is not None:
                    yield Use(file, chain[-1].lineno, named, options)

    def _of_chain(self, chain: list[ast.Call]) -> tuple[str | None, dict[str, str]]:
        named: str | None = None
        found: dict[str, str | None] = {}
        for call in chain:
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            values = [self._text(argument) for argument in call.args]
            if name == "format" and values:
                named = values[0]
            elif name == "option" and len(values) == 2 and values[0] is not None:
                found[values[0]] = values[1]
            elif name == "options":
                for keyword in call.keywords:
                    found |= self._keyword(keyword)
            elif name == "create_sink" and len(values) >= 2 and isinstance(call.args[-1], ast.Dict):
                named = values[1]
                found |= self._dictionary(call.args[-1])
        return named, {key.lower(): value for key, value in found.items() if value is not None}

    def _keyword(self, keyword: ast.keyword) -> dict[str, str | None]:
        if keyword.arg is None:
            return self._dictionary(keyword.value) if isinstance(keyword.value, ast.Dict) else {}
        return {keyword.arg: self._text(keyword.value)}

    def _dictionary(self, node: ast.Dict) -> dict[str, str | None]:
        pairs = ((self._text(key), self._text(value)) for key, value in zip(node.keys, node.values, strict=True))
        return {key: value for key, value in pairs if key is not None}

    def _text(self, node: ast.expr | None) -> str | None:
        match node:
            case ast.Constant(value=str() | int() | bool() as value):
                return str(value)
            case ast.Name(id=name):
                return self._names.get(name)
            case ast.Call(func=ast.Attribute(value=place, attr="get"), args=[name, *others]) if _is_environment(place):
                return self._variable(name, others[0] if others else None)
            case ast.Subscript(value=place, slice=name) if _is_environment(place):
                return self._variable(name, None)
        return None

    def _variable(self, name: ast.expr, otherwise: ast.expr | None) -> str | None:
        value = self._environment.get(self._text(name) or "")
        return self._text(otherwise) if value is None else value


def _is_environment(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="os"), attr="environ") | ast.Name(id="environ"):
            return True
    return False


def _chain(node: ast.expr) -> Iterator[ast.Call]:
    while True:
        if isinstance(node, ast.Call):
            yield node
            node = node.func
        elif isinstance(node, ast.Attribute):
            node = node.value
        else:
            return
