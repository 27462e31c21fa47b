"""Settings of an archive."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.client import options as client_options
from headrace.client.errors import OptionError
from headrace.client.options import ClientOptions
from headrace.lakehouse.decoders.decoder import Decoding
from headrace.lakehouse.paths import local_path
from headrace.lakehouse.status.document import TOPIC
from headrace.lakehouse.write.location import Place
from headrace.spark.source.topic_log import Subscription


@dataclass(frozen=True, kw_only=True)
class ArchiveSettings:
    """`topics` or `pattern` must be set."""

    table: str
    """A directory or the URL of an object store; `{topic}` is replaced by the topic's name."""
    redis: str = field(repr=False)
    """The storage URL of the server, with the Redis password if required."""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression for whole names, which includes topics created later."""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """delta-rs' storage options for driver and executors."""
    kafka: str | None = None
    group: str | None = None
    """The consumer group whose offsets follow the tables; needs `kafka`, `HOST:PORT`."""
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Login at `kafka`: `kafka.*` options of `format("headrace")`."""
    checkpoint: str | None = None
    """Parent directory of Spark's checkpoint. None: a temporary one; the tables have the offsets."""
    trigger_s: float = 10.0
    """Maximum seconds until a record is committed."""
    min_rows: int = 200_000
    """Waiting records that start a commit immediately."""
    max_rows: int = 2_000_000
    """Maximum records of a commit."""
    skip_lost: bool = False
    """Continue if retention was faster than the archive, instead of failing."""
    skip_unreadable: bool = False
    """Continue after an unreadable batch, instead of failing. Its bytes go into the table's `_unreadable`."""
    share_table: bool = False
    """Continue if the table belongs to another topic, or to a topic of another server, instead of failing."""
    schema: str | None = None
    """Typed tables: `json` (inferred columns), `confluent`, or a file: JSON Schema, .avsc, .proto, .desc."""
    schema_registry: str | None = None
    """With `confluent`: a registry's URL, or a folder with `<id>.avsc`, `<id>.json`, `<id>.proto`."""
    schema_message: str | None = None
    """Full name of a Protobuf message."""
    iceberg: str | None = None
    """`CATALOG:NAMESPACE.TABLE` of an Iceberg table with the same files; `{topic}` is replaced by the topic's name."""
    iceberg_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the catalog, which override pyiceberg's configuration."""
    traces: str | None = None
    """URL of an OpenTelemetry receiver, to continue the traces of records; needs `headrace[otel]`."""

    def check(self) -> None:
        """Raise OptionError for conflicting settings."""
        if (self.kafka is None) != (self.group is None):
            raise OptionError(
                "a consumer group and the Kafka address it is committed at go together: give both or neither"
            )
        if bool(self.topics) == (self.pattern is not None):
            raise OptionError("name topics, or give a pattern: one of the two")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise OptionError(f"the pattern {self.pattern!r} is not a regular expression: {error}") from None
        if self.checkpoint is not None:
            self.checkpoint_folder  # noqa: B018  # whether it is one
        for place, between in ((self.table, "/"), (self.iceberg or TOPIC, ".")):
            if TOPIC in place or (self.pattern is None and len(self.topics) == 1):
                continue
            raise OptionError(
                f"a table has one topic: put {TOPIC} where the topic's name belongs, such as {place}{between}{TOPIC}"
            )

    def server(self) -> ClientOptions:
        """Return the options to commit the group. Raise OptionError."""
        found = client_options.parse({**self.login, client_options.SERVERS: str(self.kafka)})
        assert found is not None
        return found

    def decoding(self) -> Decoding | None:
        """Return how values become columns. Raise OptionError."""
        if self.schema is None:
            if self.schema_registry is not None or self.schema_message is not None:
                raise OptionError("--schema-registry and --schema-message go with --schema")
            return None
        return Decoding.of(self.schema, registry=self.schema_registry, message=self.schema_message)

    @property
    def checkpoint_folder(self) -> Path:
        """Return Spark's checkpoint folder. Raise OptionError if it is not local."""
        try:
            path = local_path(str(self.checkpoint))
        except ValueError as error:
            raise OptionError(f"--checkpoint: {error}") from None
        if path is None:
            raise OptionError(f"--checkpoint must be a directory of this machine, not {self.checkpoint}")
        return path

    @property
    def subscription(self) -> Subscription:
        """Return the topics' subscription."""
        return Subscription(names=tuple(dict.fromkeys(self.topics)), pattern=self.pattern)

    def place(self, topic: str) -> Place:
        """Return a table's location. Raise TableError for an unknown scheme."""
        return Place.of(self.table.replace(TOPIC, topic), self.storage)
