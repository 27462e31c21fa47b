"""What to archive, and how."""

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
    """What to archive, and how. Give `topics` or `pattern`."""

    table: str
    """A directory, or the URL of an object store; `{topic}` in it stands for the topic's name."""
    redis: str = field(repr=False)
    """The storage URL of the server, with the password of its Redis where that wants one."""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression for whole names; topics created later are archived too."""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """delta-rs' storage options, the same on driver and executors."""
    kafka: str | None = None
    group: str | None = None
    """The consumer group whose positions follow the tables; needs `kafka`, `HOST:PORT`."""
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How to log in at `kafka`: `kafka.*` options of `format("headrace")`."""
    checkpoint: str | None = None
    """Spark's checkpoint is kept under this directory; None: a temporary one, and the tables say where to go on."""
    trigger_s: float = 10.0
    """Records wait at most this long for their commit."""
    min_rows: int = 200_000
    """This many waiting are committed at once."""
    max_rows: int = 2_000_000
    """No commit holds more."""
    skip_lost: bool = False
    """Go on, instead of failing, where retention was faster than the archive."""
    skip_unreadable: bool = False
    """Go on, instead of failing, where a stored batch cannot be read; its bytes go into the table's `_unreadable`."""
    schema: str | None = None
    """Typed tables: `json` (columns as they are found), `confluent`, or a file: JSON Schema, .avsc, .proto, .desc."""
    schema_registry: str | None = None
    """With `confluent`: the URL of a registry, or a folder with `<id>.avsc`, `<id>.json`, `<id>.proto`."""
    schema_message: str | None = None
    """Protobuf: the message's full name."""
    iceberg: str | None = None
    """`CATALOG:NAMESPACE.TABLE` of an Iceberg table with the same files; `{topic}` stands for the topic's name."""
    iceberg_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of the catalog, over pyiceberg's own configuration."""
    traces: str | None = None
    """URL of an OpenTelemetry receiver, to which the traces of records are continued; needs `headrace[otel]`."""

    def check(self) -> None:
        """Raise OptionError for what does not fit together."""
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
        """Where the group is committed, and as whom. Raises OptionError."""
        found = client_options.parse({**self.login, client_options.SERVERS: str(self.kafka)})
        assert found is not None
        return found

    def decoding(self) -> Decoding | None:
        """How values become columns. Raises OptionError for a schema that cannot be read."""
        if self.schema is None:
            if self.schema_registry is not None or self.schema_message is not None:
                raise OptionError("--schema-registry and --schema-message go with --schema")
            return None
        return Decoding.of(self.schema, registry=self.schema_registry, message=self.schema_message)

    @property
    def checkpoint_folder(self) -> Path:
        """Where Spark's checkpoints are kept. Raises OptionError for what is no directory of this machine."""
        try:
            path = local_path(str(self.checkpoint))
        except ValueError as error:
            raise OptionError(f"--checkpoint: {error}") from None
        if path is None:
            raise OptionError(f"--checkpoint must be a directory of this machine, not {self.checkpoint}")
        return path

    @property
    def subscription(self) -> Subscription:
        """The topics, as a source reads them."""
        return Subscription(names=tuple(dict.fromkeys(self.topics)), pattern=self.pattern)

    def place(self, topic: str) -> Place:
        """Where a topic's table lies. Raises TableError for a URL of a kind that is not known."""
        return Place.of(self.table.replace(TOPIC, topic), self.storage)
