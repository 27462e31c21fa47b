"""The options of `format("headrace")`: parsed once, checked against each other, refused with one clear line.

Names and meanings are those of Spark's Kafka source where it has them; names are case-insensitive.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.spark.errors import OptionError

LATEST: Final = -1
EARLIEST: Final = -2

Positions = int | dict[int, int]
"""LATEST or EARLIEST for every partition, or an offset (or -1, -2) for each."""

_KNOWN: Final = {
    name.lower(): name
    for name in (
        "redis",
        "subscribe",
        "startingOffsets",
        "endingOffsets",
        "failOnDataLoss",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "minPartitions",
        "maxRecordsPerPartition",
        "includeHeaders",
        "consumerGroup",
        "kafka.bootstrap.servers",
        "topicId",
    )
}
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


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What one read was asked to do. Travels to the executors, so it holds plain values only."""

    redis: str
    """URL of the storage, as `redis.from_url` takes it."""
    topic: str
    starting: Positions | None = None
    """None: not given, which means latest for a stream and earliest for a batch read."""
    ending: Positions | None = None
    fail_on_data_loss: bool = True
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    group: str | None = None
    bootstrap_servers: str | None = None
    topic_id: str | None = None
    """Refuse to read a topic of that name with another id (the archive's guard against re-creation)."""


def parse(options: Mapping[str, str], *, default_redis: str | None) -> SourceOptions:
    """The options of one read; `default_redis` stands in for a missing `redis`.

    Raises:
        OptionError: an unknown name, a value that does not fit, or options that contradict each other.
    """
    options = _without_table_properties(options)
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(options)
    redis = given.get("redis") or default_redis
    if not redis:
        raise OptionError("no storage named: set option 'redis' to the server's storage URL, or HEADRACE_REDIS")
    topic = _topic(given)
    group, servers = _group(given)
    return SourceOptions(
        redis=redis,
        topic=topic,
        starting=_positions("startingOffsets", given, topic),
        ending=_positions("endingOffsets", given, topic),
        fail_on_data_loss=_flag("failOnDataLoss", given, default=True),
        max_offsets=_count("maxOffsetsPerTrigger", given),
        min_offsets=_count("minOffsetsPerTrigger", given),
        max_delay_ms=_duration("maxTriggerDelay", given, default_ms=15 * 60_000),
        min_partitions=_count("minPartitions", given),
        max_records_per_partition=_count("maxRecordsPerPartition", given),
        include_headers=_flag("includeHeaders", given, default=False),
        group=group,
        bootstrap_servers=servers,
        topic_id=given.get("topicid"),
    )


def check_batch(options: SourceOptions) -> None:
    """Raise OptionError for what makes no sense in a batch read."""
    if LATEST in _values(options.starting):
        raise OptionError("startingOffsets of a batch read cannot be 'latest' (-1): it would read nothing")
    if EARLIEST in _values(options.ending):
        raise OptionError("endingOffsets cannot be 'earliest' (-2): it would read nothing")
    if options.group is not None:
        raise OptionError("consumerGroup is for streaming reads: a batch read has no position to commit")
    for name, value in (
        ("maxOffsetsPerTrigger", options.max_offsets),
        ("minOffsetsPerTrigger", options.min_offsets),
    ):
        if value is not None:
            raise OptionError(f"{name} is for streaming reads")


def check_streaming(options: SourceOptions) -> None:
    """Raise OptionError for what makes no sense in a streaming read."""
    if options.ending is not None:
        raise OptionError("endingOffsets is for batch reads: a stream has no end")
    low, high = options.min_offsets, options.max_offsets
    if low is not None and high is not None and low > high:
        raise OptionError(f"minOffsetsPerTrigger ({low}) is above maxOffsetsPerTrigger ({high})")


def positions_json(topic: str, positions: Mapping[int, int]) -> str:
    """Offsets as the JSON that `startingOffsets` and `endingOffsets` take."""
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(positions.items())}})


def _without_table_properties(options: Mapping[str, str]) -> Mapping[str, str]:
    """Spark hands a table of its catalog over with the table's own properties among the options, and those twice."""
    if "provider" not in options:
        return options
    return {
        name: value
        for name, value in options.items()
        if name.lower() not in _TABLE_PROPERTIES and not name.lower().startswith("option.")
    }


def _refuse_unknown(options: Mapping[str, str]) -> None:
    for name in options:
        if name.lower() not in _KNOWN:
            known = ", ".join(sorted(known for key, known in _KNOWN.items() if key != "topicid"))
            raise OptionError(f"unknown option {name!r} of format 'headrace'; it takes: {known}")


def _topic(given: Mapping[str, str]) -> str:
    topic = given.get("subscribe", "").strip()
    if not topic:
        raise OptionError("option 'subscribe' must name the topic to read")
    if "," in topic:
        raise OptionError(f"option 'subscribe' takes exactly one topic, not {topic!r}")
    return topic


def _group(given: Mapping[str, str]) -> tuple[str | None, str | None]:
    group, servers = given.get("consumergroup"), given.get("kafka.bootstrap.servers")
    if group is not None and not group:
        raise OptionError("option 'consumerGroup' is empty")
    if servers is not None and group is None:
        raise OptionError(
            "option 'kafka.bootstrap.servers' is only for committing positions: set 'consumerGroup' too or leave it out"
        )
    if group is not None and not servers:
        raise OptionError("option 'consumerGroup' needs 'kafka.bootstrap.servers': positions are committed there")
    return group, servers


def _flag(name: str, given: Mapping[str, str], *, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in {"true", "false"}:
        raise OptionError(f"option {name!r} must be true or false, not {text!r}")
    return text.strip().lower() == "true"


def _count(name: str, given: Mapping[str, str]) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or int(digits) < 1:
        raise OptionError(f"option {name!r} must be a whole number above 0, not {text!r}")
    return int(digits)


def _duration(name: str, given: Mapping[str, str], *, default_ms: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default_ms
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise OptionError(f"option {name!r} must be a time such as 500ms, 10s or 15m, not {text!r}")
    return int(found[1]) * _UNIT_MS[found[2]]


def _positions(name: str, given: Mapping[str, str], topic: str) -> Positions | None:
    text = given.get(name.lower())
    if text is None:
        return None
    word = text.strip().lower()
    if word in {"earliest", "latest"}:
        return EARLIEST if word == "earliest" else LATEST
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or not all(isinstance(offsets, dict) for offsets in parsed.values()):
        raise OptionError(f'option {name!r} must be earliest, latest or JSON like {{"t":{{"0":23,"1":-2}}}}: {text!r}')
    if set(parsed) != {topic}:
        raise OptionError(f"option {name!r} must give the offsets of {topic!r} alone, not of {sorted(parsed)}")
    return dict(_position(name, partition, offset) for partition, offset in parsed[topic].items())


def _position(name: str, partition: str, offset: object) -> tuple[int, int]:
    if not (partition.isascii() and partition.isdigit()):
        raise OptionError(f"option {name!r} has {partition!r} where a partition number belongs")
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
        raise OptionError(
            f"option {name!r} has {offset!r} for partition {partition}: an offset, -1 (latest) or -2 (earliest) belongs"
        )
    return int(partition), offset


def _values(positions: Positions | None) -> set[int]:
    if positions is None:
        return set()
    return {positions} if isinstance(positions, int) else set(positions.values())
