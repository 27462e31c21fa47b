"""Topic configuration under Kafka's names. Pure.

A topic's own values override broker defaults, which override Kafka's. `resolve` merges them once for the hot path.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from headrace.topics.config_keys import ConfigEntry, ConfigKey, ConfigType, Source, Synonym, Value, suggestion
from headrace.topics.errors import InvalidConfig
from headrace.topics.native import ADOPTED, DEFAULT_BITS, SEQUENCE_BITS, STORAGE
from headrace.topics.record_checks import Part, RecordChecks, SubjectNameStrategy, checks_of

_UNUSED = "Accepted because clients send it; without effect: a log in Redis has no segments, index files or replicas."
MAX_LONG = 2**63 - 1
_AS_RETENTION = -2
CLEANUP_POLICY = "cleanup.policy"
COMPACT, DELETE = "compact", "delete"
DEAD_LETTERS = "errors.deadletterqueue.group.enable"
MIN_INSYNC = "min.insync.replicas"
_MOST_COPIES = 16
"""Maximum replicas. A broker opens one connection per primary and requested number."""

_RECOMPRESSION = dict.fromkeys(
    ("uncompressed", "gzip", "snappy", "lz4", "zstd"),
    "batches are kept as the producer sent them, only compression.type=producer is possible",
)

_STRATEGIES = "io.confluent.kafka.serializers.subject"
_SHORT_STRATEGIES = tuple(each.value for each in SubjectNameStrategy)
_FULL_STRATEGIES = tuple(f"{_STRATEGIES}.{name}" for name in _SHORT_STRATEGIES)

TOPIC_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(CLEANUP_POLICY, ConfigType.LIST, "delete", choices=("compact", "delete"), may_be_empty=True,
        doc="Handling of old records: `delete`, `compact` or both, separated by a comma. `delete` removes records "
            "beyond retention.ms and retention.bytes. A topic with `compact` accepts only records with a key, and "
            "keeps at least the last record of each key. Empty: none are removed (Kafka 4.1). Native topics and "
            "topics with remote.storage.enable cannot be compacted."),
    ConfigKey("retention.ms", ConfigType.LONG, "604800000", minimum=-1,
        doc="Retention time in milliseconds. -1: unlimited."),
    ConfigKey("retention.bytes", ConfigType.LONG, "-1", minimum=-1,
        doc="Maximum number of bytes of record batches in a partition. -1: unlimited."),
    ConfigKey("min.cleanable.dirty.ratio", ConfigType.DOUBLE, "0.5", minimum=0, maximum=1,
        doc="Compacted topics: share of the bytes of a log that were appended since it was last cleaned, from which it "
            "is cleaned again."),
    ConfigKey("min.compaction.lag.ms", ConfigType.LONG, "0", minimum=0,
        doc="Compacted topics: minimum age of a record in milliseconds before a later one with its key replaces it."),
    ConfigKey("max.compaction.lag.ms", ConfigType.LONG, str(MAX_LONG), minimum=1,
        doc="Compacted topics: age of the first record since the last cleaning, in milliseconds, from which the log is "
            "cleaned at any ratio."),
    ConfigKey("delete.retention.ms", ConfigType.LONG, "86400000", minimum=0,
        doc="Compacted topics: time for which a record without a value, which deletes its key, stays after the first "
            "cleaning, in milliseconds."),
    ConfigKey("remote.storage.enable", ConfigType.BOOLEAN, "false",
        doc="Whether archived records may be removed from Redis and read from the archive's table instead. Records "
            "that are not archived stay. Not for native topics."),
    ConfigKey("local.retention.ms", ConfigType.LONG, "-2", minimum=-2,
        doc="With remote.storage.enable: time for which records stay in Redis, in milliseconds. -2: as "
            "retention.ms. -1: unlimited."),
    ConfigKey("local.retention.bytes", ConfigType.LONG, "-2", minimum=-2,
        doc="With remote.storage.enable: maximum number of bytes of record batches of a partition in Redis. -2: as "
            "retention.bytes. -1: unlimited."),
    ConfigKey("max.message.bytes", ConfigType.INT, "1048588", minimum=0,
        doc="Maximum size of a record batch in bytes, after compression."),
    ConfigKey("message.timestamp.type", ConfigType.STRING, "CreateTime", choices=("CreateTime", "LogAppendTime"),
        doc="Source of timestamps: the producer (CreateTime) or the server (LogAppendTime)."),
    ConfigKey("message.timestamp.before.max.ms", ConfigType.LONG, str(MAX_LONG), minimum=0,
        doc="Maximum time by which a timestamp may be earlier than the server's clock, in milliseconds (CreateTime "
            "only)."),
    ConfigKey("message.timestamp.after.max.ms", ConfigType.LONG, "3600000", minimum=0,
        doc="Maximum time by which a timestamp may be later than the server's clock, in milliseconds (CreateTime "
            "only)."),
    ConfigKey("compression.type", ConfigType.STRING, "producer", choices=("producer",), refused=_RECOMPRESSION,
        doc="Batches keep the compression of their producer."),
    ConfigKey(MIN_INSYNC, ConfigType.INT, "1", minimum=1, maximum=_MOST_COPIES,
        doc="Number of Redis servers that must have a batch before the server responds to acks=all: the primary, "
            "and above 1 its replicas. Must be 1 with the embedded Valkey, which has no replicas."),
    ConfigKey(STORAGE, ConfigType.STRING, "log", choices=("log", "native"),
        doc="Storage of a topic in Redis. `log` has one entry per record batch. `native` is a plain Redis Stream "
            "with one entry per record, which Redis clients can write and read. Fixed at creation (not in Kafka)."),
    ConfigKey(SEQUENCE_BITS, ConfigType.INT, str(DEFAULT_BITS), minimum=0, maximum=12,
        doc="Native topics: number of bits of an offset for the sequence of the entry id. The others hold its "
            "milliseconds. Fixed at creation (not in Kafka)."),
    ConfigKey(ADOPTED, ConfigType.LIST, "",
        doc="Native topics: partitions whose streams existed before the topic. They remain when the topic is "
            "deleted. Set by `headrace topics adopt` (not in Kafka)."),
    *(
        ConfigKey(part.validation, ConfigType.BOOLEAN, "false",
            doc=f"Whether the server rejects records whose {part.value} has no ID of a schema that is registered under "
                f"the right subject. A {part.value} that is null is accepted. Needs schema.registry.enable=true (not "
                "in Apache Kafka).")
        for part in Part
    ),
    *(
        ConfigKey(part.strategy, ConfigType.STRING, f"{_STRATEGIES}.{SubjectNameStrategy.TOPIC.value}",
            choices=(*_FULL_STRATEGIES, *_SHORT_STRATEGIES),
            doc=f"With {part.validation}: name of the subject. TopicNameStrategy is <topic>-{part.value}, "
                "RecordNameStrategy the name of the record in the schema, and TopicRecordNameStrategy "
                "<topic>-<record>.")
        for part in Part
    ),
    ConfigKey(DEAD_LETTERS, ConfigType.BOOLEAN, "false",
        doc="Whether groups may name the topic as their dead letter topic. The server then writes records of other "
            "topics to it (KIP-1191)."),
    ConfigKey("segment.bytes", ConfigType.INT, "1073741824", minimum=14, effective=False, doc=_UNUSED),
    ConfigKey("segment.ms", ConfigType.LONG, "604800000", minimum=1, effective=False, doc=_UNUSED),
    ConfigKey("segment.jitter.ms", ConfigType.LONG, "0", minimum=0, effective=False, doc=_UNUSED),
    ConfigKey("segment.index.bytes", ConfigType.INT, "10485760", minimum=4, effective=False, doc=_UNUSED),
    ConfigKey("index.interval.bytes", ConfigType.INT, "4096", minimum=0, effective=False, doc=_UNUSED),
    ConfigKey("flush.messages", ConfigType.LONG, str(MAX_LONG), minimum=1, effective=False, doc=_UNUSED),
    ConfigKey("flush.ms", ConfigType.LONG, str(MAX_LONG), minimum=0, effective=False, doc=_UNUSED),
    ConfigKey("file.delete.delay.ms", ConfigType.LONG, "60000", minimum=0, effective=False, doc=_UNUSED),
    *(
        ConfigKey(
            name=f"{side}.replication.throttled.replicas",
            type=ConfigType.LIST,
            default="",
            doc=_UNUSED,
            effective=False,
        )
        for side in ("leader", "follower")
    ),
    ConfigKey("preallocate", ConfigType.BOOLEAN, "false", effective=False, doc=_UNUSED),
    ConfigKey("unclean.leader.election.enable", ConfigType.BOOLEAN, "false", effective=False, doc=_UNUSED),
)  # fmt: skip
"""All keys. Others are rejected."""

_BY_NAME = {key.name: key for key in TOPIC_KEYS}
_LONGEST = 1_024
"""Maximum characters of a given value, with blanks: each is stored, and read again with each change."""


class TopicDefaults(msgspec.Struct, frozen=True):
    """Defaults of topics: configured broker values, else Kafka's default. The values are validated text."""

    values: dict[str, str] = {}


class CompactionConfig(msgspec.Struct, frozen=True):
    """Configuration of a compacted topic."""

    min_cleanable_dirty_ratio: float = 0.5
    """Share of dirty bytes from which a log is cleaned."""
    min_compaction_lag_ms: int = 0
    """Minimum age of a record that is cleaned."""
    max_compaction_lag_ms: int = MAX_LONG
    """Age of the first dirty record from which a log is cleaned."""
    delete_retention_ms: int = 86_400_000
    """Time for which tombstones stay."""


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's configuration for append, retention and cleanup. Times in ms, sizes in bytes."""

    retention_ms: int
    """-1: unlimited."""
    retention_bytes: int
    """Per partition. -1: unlimited."""
    remote: bool = False
    """Archived records may leave the log, and are read from the archive."""
    local_retention_ms: int = -1
    """Retention of archived records in the log. -1: unlimited."""
    local_retention_bytes: int = -1
    """Bytes of archived records in the log. -1: unlimited."""
    max_message_bytes: int
    log_append_time: bool
    """The server's time replaces the producer's timestamps."""
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    native: bool = False
    """A plain Redis Stream with one entry per record."""
    min_insync_replicas: int = 1
    """Servers that must have a batch before acks=all succeeds."""
    sequence_bits: int = DEFAULT_BITS
    """Native topics: bits of an offset for the sequence of the entry id."""
    compaction: CompactionConfig | None = None
    """None: the topic is not compacted."""
    checks: RecordChecks | None = None
    """Checks of each record. None: records are not read."""
    dead_letters: bool = False
    """Whether it may be a group's dead letter topic."""


def resolve(config: Mapping[str, str], defaults: TopicDefaults) -> TopicConfig:
    """Return `config` over `defaults`.

    Raises:
        InvalidConfig: an unknown key or invalid value.
    """
    check(config)

    def number(name: str) -> int:
        value = _parse(name, _value(name, config, defaults))
        assert isinstance(value, int)
        return value

    def strategy(part: Part) -> SubjectNameStrategy | None:
        if _value(part.validation, config, defaults).lower() != "true":
            return None
        name = _value(part.strategy, config, defaults)
        return SubjectNameStrategy(name.rpartition(".")[2])

    native = _value(STORAGE, config, defaults) == "native"
    remote = _value("remote.storage.enable", config, defaults).lower() == "true"
    if native and remote:
        raise InvalidConfig("remote.storage.enable=true: a native topic has no archive, its records lie in Redis only")
    policies = policies_of(_value(CLEANUP_POLICY, config, defaults))
    compacted = COMPACT in policies
    if compacted and native:
        raise InvalidConfig(
            f"{CLEANUP_POLICY}={COMPACT}: a native topic cannot be compacted, its entries belong to Redis programs too"
        )
    if compacted and remote:
        raise InvalidConfig("remote.storage.enable=true: Remote log storage is unsupported for the compacted topics")
    # Without `delete`, retention removes nothing. Archived records may still leave Redis.
    drops = DELETE in policies
    local_ms, local_bytes = _local(number, "ms", drops=drops), _local(number, "bytes", drops=drops)
    return TopicConfig(
        retention_ms=number("retention.ms") if drops else -1,
        retention_bytes=number("retention.bytes") if drops else -1,
        remote=remote,
        local_retention_ms=local_ms,
        local_retention_bytes=local_bytes,
        max_message_bytes=number("max.message.bytes"),
        log_append_time=_value("message.timestamp.type", config, defaults) == "LogAppendTime",
        timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        native=native,
        min_insync_replicas=number(MIN_INSYNC),
        sequence_bits=number(SEQUENCE_BITS),
        compaction=CompactionConfig(
            float(_value("min.cleanable.dirty.ratio", config, defaults)),
            number("min.compaction.lag.ms"),
            number("max.compaction.lag.ms"),
            number("delete.retention.ms"),
        )
        if compacted
        else None,
        checks=checks_of(compacted=compacted, key=strategy(Part.KEY), value=strategy(Part.VALUE)),
        dead_letters=_value(DEAD_LETTERS, config, defaults).lower() == "true",
    )


def policies_of(text: str) -> frozenset[str]:
    """Return the items of a valid `cleanup.policy`."""
    return frozenset(each.strip() for each in text.split(",") if each.strip())


def _local(number: Callable[[str], int], unit: str, *, drops: bool) -> int:
    """Return local retention, at most total retention (KIP-405)."""
    local, whole = number(f"local.retention.{unit}"), number(f"retention.{unit}") if drops else -1
    if local == _AS_RETENTION or (whole >= 0 and not 0 <= local <= whole):
        return whole
    return local


def check(config: Mapping[str, str]) -> None:
    """Raise InvalidConfig for the first unknown key or invalid value."""
    for name, text in config.items():
        if name not in _BY_NAME:
            hint = suggestion(name, _BY_NAME)
            raise InvalidConfig(f"unknown topic configuration {name[:_LONGEST]!r}" + (f", {hint}" if hint else ""))
        _parse(name, text)


def check_length(name: str, text: str) -> None:
    """Raise InvalidConfig for a value that is too long."""
    if len(text) > _LONGEST:
        raise InvalidConfig(f"{name}: a value has at most {_LONGEST} characters, this one has {len(text)}")


def check_given(config: Mapping[str, str], present: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raise InvalidConfig for values that clients may not set. Values unchanged from `present` are accepted."""
    for name, text in config.items():
        if text == present.get(name):
            continue
        if name == ADOPTED:
            raise InvalidConfig(f"{ADOPTED} cannot be given: only adoption sets it")
        check_length(name, text)


def describe(config: Mapping[str, str], defaults: TopicDefaults) -> tuple[ConfigEntry, ...]:
    """Return every key with its value and source. `config` is already checked."""
    return tuple(ConfigEntry(key=key, synonyms=tuple(_layers(key, config, defaults))) for key in TOPIC_KEYS)


def _layers(key: ConfigKey, config: Mapping[str, str], defaults: TopicDefaults) -> list[Synonym]:
    assert key.default is not None, f"topic key {key.name} has no default"
    layers = [Synonym(key.name, key.default, Source.DEFAULT)]
    if key.name in defaults.values:
        layers.insert(0, Synonym(key.name, defaults.values[key.name], Source.BROKER))
    if key.name in config:
        layers.insert(0, Synonym(key.name, config[key.name].strip(), Source.TOPIC))
    return layers


def _value(name: str, config: Mapping[str, str], defaults: TopicDefaults) -> str:
    return _layers(_BY_NAME[name], config, defaults)[0].value


def _parse(name: str, text: str) -> Value:
    try:
        return _BY_NAME[name].parse(text)
    except ValueError as error:
        raise InvalidConfig(f"{name}={text}: {error}") from None
