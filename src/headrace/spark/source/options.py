"""Parse and check the options of reading `format("headrace")`.

Names, in any case, and meanings are those of Spark's Kafka source.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal

from headrace.client import options as client_options
from headrace.client.errors import OptionError
from headrace.client.offsets import TopicPartition
from headrace.client.options import ClientOptions
from headrace.lakehouse.paths import local_path
from headrace.spark.source import offset_bounds
from headrace.spark.source.offset_bounds import EARLIEST, LATEST, Positions, Strategy
from headrace.spark.source.topic_log import Subscription
from headrace.storage.redis.url import password_in, with_password

ASK: Final = "ask"
"""Value of option `redis`: the server at `kafka.bootstrap.servers` returns its storage URL."""
_NAMES: Final = (
    "redis",
    "redisPasswordFile",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "unreadableBatches",
    "unreadableBatchesPath",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "consumerGroup",
    "topicId",
)
_WITHOUT_MEANING: Final = frozenset(
    # Spark's Kafka source has them for its JVM consumers.
    (
        "groupidprefix",
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
    )
)
_TABLE_PROPERTIES: Final = frozenset(
    (
        "provider",
        "owner",
        "comment",
        "location",
        "path",
        "external",
        "is_managed_location",
        "collation",
        "serialization.format",
    )
)
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h)", re.ASCII)
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_SIZE: Final = re.compile(r"(\d+)\s*(?:b|([kmg])b?)?", re.ASCII)
_UNIT_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options of one read, as plain values because they are sent to the executors."""

    subscription: Subscription
    redis: str | None = field(default=None, repr=False)
    """URL of the storage for `redis.from_url`; ASK: request it from the server; None: read by the Kafka protocol."""
    redis_password: str | None = field(default=None, repr=False)
    """With ASK: the password of the storage."""
    kafka: ClientOptions | None = None
    """The Kafka server, to read without `redis` and to commit the group."""
    read_committed: bool = False
    """Leave out aborted records, and end at the last stable offset (`kafka.isolation.level`)."""
    starting: Positions | None = None
    """None: the default, which is latest for a stream and earliest for a batch read."""
    ending: Positions | None = None
    strategy: Strategy = "error"
    fail_on_data_loss: bool = True
    unreadable: Literal["fail", "skip"] = "fail"
    quarantine: str | None = None
    """Directory for the bytes of skipped batches."""
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_bytes: int | None = None
    max_delay_ms: int = 15 * 60_000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    group: str | None = None
    topic_id: str | None = None
    """Required ID of the topic, which guards the archive against a recreated topic."""


def parse(options: Mapping[str, str], *, default_redis: str | None) -> SourceOptions:
    """Return the options of one read. `default_redis` is the default storage. Raise OptionError."""
    options = without_table_properties(options)
    given = {name.lower(): value for name, value in options.items()}
    refuse_unknown(options, _NAMES, also=_WITHOUT_MEANING)
    committed = False
    if client_options.ISOLATION in given and not {client_options.SERVERS, client_options.PROPERTIES} & given.keys():
        # The only setting of Kafka's that has a meaning without its protocol.
        committed = client_options.is_read_committed({"isolation.level": given.pop(client_options.ISOLATION)})
    kafka = client_options.parse(given)
    redis = given.get("redis") or (default_redis if kafka is None else None)
    if not redis and kafka is None:
        raise OptionError(
            "no server named: set option 'kafka.bootstrap.servers', or 'redis' to the server's storage URL"
        )
    if redis == ASK and kafka is None:
        raise OptionError("redis=ask needs 'kafka.bootstrap.servers': the server there is asked where its storage is")
    redis, password = _redis_login(given, redis)
    group = given.get("consumergroup")
    if group is not None and not group:
        raise OptionError("option 'consumerGroup' is empty")
    if group is not None and kafka is None:
        raise OptionError("option 'consumerGroup' needs 'kafka.bootstrap.servers': positions are committed there")
    return SourceOptions(
        redis=redis or None,
        redis_password=password,
        kafka=kafka,
        read_committed=committed if kafka is None else kafka.read_committed,
        subscription=_subscription(given),
        starting=offset_bounds.parse("starting", given),
        ending=offset_bounds.parse("ending", given),
        strategy=choice("startingOffsetsByTimestampStrategy", given, ("error", "latest")),  # type: ignore[arg-type]
        fail_on_data_loss=flag("failOnDataLoss", given, default=True),
        unreadable=choice("unreadableBatches", given, ("fail", "skip")),  # type: ignore[arg-type]
        quarantine=_quarantine(given),
        max_offsets=count("maxOffsetsPerTrigger", given),
        min_offsets=count("minOffsetsPerTrigger", given),
        max_bytes=_bytes("maxBytesPerTrigger", given),
        max_delay_ms=_duration("maxTriggerDelay", given, default_ms=15 * 60_000),
        min_partitions=count("minPartitions", given),
        max_records_per_partition=count("maxRecordsPerPartition", given),
        include_headers=flag("includeHeaders", given, default=False),
        group=group,
        topic_id=given.get("topicid"),
    )


def check_batch(options: SourceOptions) -> None:
    """Raise OptionError for options that a batch read does not support."""
    if LATEST in offset_bounds.values(options.starting):
        raise OptionError("startingOffsets of a batch read cannot be 'latest' (-1): it would read nothing")
    if EARLIEST in offset_bounds.values(options.ending):
        raise OptionError("endingOffsets cannot be 'earliest' (-2): it would read nothing")
    if options.group is not None:
        raise OptionError("consumerGroup is for streaming reads: a batch read has no position to commit")
    for name, value in (
        ("maxOffsetsPerTrigger", options.max_offsets),
        ("minOffsetsPerTrigger", options.min_offsets),
        ("maxBytesPerTrigger", options.max_bytes),
    ):
        if value is not None:
            raise OptionError(f"{name} is for streaming reads")


def check_streaming(options: SourceOptions) -> None:
    """Raise OptionError for options that a streaming read does not support."""
    if options.ending is not None:
        raise OptionError("endingOffsets and its kin are for batch reads: a stream has no end")
    low, high = options.min_offsets, options.max_offsets
    if low is not None and high is not None and low > high:
        raise OptionError(f"minOffsetsPerTrigger ({low}) is above maxOffsetsPerTrigger ({high})")


def without_table_properties(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return options without a catalog table's own properties, which Spark adds twice."""
    if "provider" not in options:
        return options
    return {
        name: value
        for name, value in options.items()
        if name.lower() not in _TABLE_PROPERTIES and not name.lower().startswith("option.")
    }


def refuse_unknown(options: Mapping[str, str], names: tuple[str, ...], *, also: frozenset[str] = frozenset()) -> None:
    """Raise OptionError for an option that is neither among the names nor Kafka's."""
    known = {name.lower(): name for name in names}
    for name in options:
        if name.lower() in known or name.lower() in also or name.lower().startswith(client_options.PREFIX):
            continue
        near = get_close_matches(name.lower(), [*known, "kafka.bootstrap.servers"], n=1)
        hint = f"did you mean {known.get(near[0], near[0])!r}? " if near else ""
        listed = ", ".join(sorted(one for one in names if one != "topicId"))
        raise OptionError(f"unknown option {name!r} of format 'headrace'; {hint}it takes: {listed}, kafka.*")


def _redis_login(given: Mapping[str, str], redis: str | None) -> tuple[str | None, str | None]:
    path = given.get("redispasswordfile")
    if path is None:
        return redis, None
    if not redis:
        raise OptionError("option 'redisPasswordFile' needs 'redis' as well: the storage's URL, or ask")
    try:
        password = password_in(Path(path))
        return (redis, password) if redis == ASK else (with_password(redis, password), None)
    except OSError as error:
        raise OptionError(f"'redisPasswordFile' {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise OptionError(f"option 'redisPasswordFile': {error}") from None


def _subscription(given: Mapping[str, str]) -> Subscription:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in given]
    if len(chosen) != 1:
        found = f", not {' and '.join(chosen)}" if chosen else ""
        raise OptionError(f"one of 'subscribe', 'subscribePattern' and 'assign' must say what to read{found}")
    text = given[chosen[0].lower()].strip()
    if chosen == ["subscribe"]:
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        if not all(names):
            raise OptionError(f"option 'subscribe' must name topics, with commas between: {text!r}")
        return Subscription(names=names)
    if chosen == ["subscribePattern"]:
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"option 'subscribePattern' is not a regular expression: {error}") from None
        if not text:
            raise OptionError("option 'subscribePattern' is empty")
        return Subscription(pattern=text)
    return Subscription(assigned=_assigned(text))


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    try:
        parsed = json.loads(text)
        found = tuple(
            TopicPartition(topic, number) for topic, numbers in parsed.items() for number in dict.fromkeys(numbers)
        )
    except (ValueError, AttributeError, TypeError):
        found = ()
    if not found or not all(type(one.partition) is int and one.partition >= 0 for one in found):
        raise OptionError(f"option 'assign' must be JSON like {{\"t\":[0,1]}}: {text!r}")
    return found


def _quarantine(given: Mapping[str, str]) -> str | None:
    path = given.get("unreadablebatchespath")
    if path is not None and given.get("unreadablebatches", "").strip().lower() != "skip":
        raise OptionError("option 'unreadableBatchesPath' goes with unreadableBatches=skip")
    try:
        folder = None if path is None else local_path(path)
    except ValueError as error:
        raise OptionError(f"option 'unreadableBatchesPath': {error}") from None
    if path is not None and folder is None:
        raise OptionError(f"option 'unreadableBatchesPath' must be a directory, not {path}")
    return None if folder is None else str(folder)


def flag(name: str, given: Mapping[str, str], *, default: bool) -> bool:
    """Parse a boolean option."""
    text = given.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in {"true", "false"}:
        raise OptionError(f"option {name!r} must be true or false, not {text!r}")
    return text.strip().lower() == "true"


def choice(name: str, given: Mapping[str, str], allowed: tuple[str, ...]) -> str:
    """Parse an option that is one of some words, by default the first."""
    text = given.get(name.lower(), allowed[0]).strip().lower()
    if text not in allowed:
        raise OptionError(f"option {name!r} must be {' or '.join(allowed)}, not {text!r}")
    return text


def count(name: str, given: Mapping[str, str]) -> int | None:
    """Parse a positive number."""
    text = given.get(name.lower())
    if text is None:
        return None
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or int(digits) < 1:
        raise OptionError(f"option {name!r} must be a whole number above 0, not {text!r}")
    return int(digits)


def _bytes(name: str, given: Mapping[str, str]) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or int(found[1]) < 1:
        raise OptionError(f"option {name!r} must be a size such as 1048576, 512k or 64m, not {text!r}")
    return int(found[1]) * _UNIT_BYTES[found[2] or ""]


def _duration(name: str, given: Mapping[str, str], *, default_ms: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default_ms
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise OptionError(f"option {name!r} must be a time such as 500ms, 10s or 15m, not {text!r}")
    return int(found[1]) * _UNIT_MS[found[2]]
