import pytest

from headrace.topics.config import TOPIC_KEYS, TopicDefaults, check, check_given, describe, resolve
from headrace.topics.config_keys import Source
from headrace.topics.errors import InvalidConfig

KAFKA = TopicDefaults()


def test_with_nothing_set_a_topic_has_kafkas_defaults() -> None:
    config = resolve({}, KAFKA)
    assert config.retention_ms == 7 * 24 * 3_600_000
    assert config.retention_bytes == -1
    assert config.max_message_bytes == 1_048_588
    assert config.log_append_time is False
    assert config.timestamp_before_max_ms == 2**63 - 1
    assert config.timestamp_after_max_ms == 3_600_000


def test_a_topics_value_overrides_the_brokers_and_kafkas() -> None:
    defaults = TopicDefaults({"retention.ms": "20", "retention.bytes": "7"})
    config = resolve({"retention.ms": "10", "message.timestamp.type": "LogAppendTime"}, defaults)
    assert (config.retention_ms, config.retention_bytes) == (10, 7)
    assert config.log_append_time is True


def test_a_description_has_the_source_of_each_value() -> None:
    defaults = TopicDefaults({"retention.ms": "20"})
    entries = {entry.key.name: entry for entry in describe({"retention.ms": "10"}, defaults)}
    assert len(entries) == len(TOPIC_KEYS)
    assert entries["retention.ms"].synonyms == (
        ("retention.ms", "10", Source.TOPIC),
        ("retention.ms", "20", Source.BROKER),
        ("retention.ms", "604800000", Source.DEFAULT),
    )
    assert entries["retention.ms"].source is Source.TOPIC
    assert (entries["segment.bytes"].value, entries["segment.bytes"].source) == ("1073741824", Source.DEFAULT)


def test_an_unknown_key_is_refused_by_name_with_a_near_one() -> None:
    with pytest.raises(InvalidConfig, match=r"'retention\.msec', did you mean retention\.ms\?"):
        resolve({"retention.msec": "1"}, KAFKA)


@pytest.mark.parametrize(
    ("key", "long"), [("retention.ms", " " * 1_024 + "7"), ("cleanup.policy", ",".join(["delete"] * 150))]
)
def test_a_value_that_is_given_has_a_length_blanks_included(key: str, long: str) -> None:
    check_given({"retention.ms": " " * 1_000 + "7"})
    with pytest.raises(InvalidConfig, match="1024 characters"):
        check_given({key: long})
    with pytest.raises(InvalidConfig, match="1024 characters"):
        check_given({key: long}, {key: long + " "})


@pytest.mark.parametrize(
    "stored",
    [
        {"retention.ms": " " * 1_024 + "7"},
        # One number for each partition that was adopted.
        {"headrace.storage": "native", "headrace.adopted": ",".join(map(str, range(10_000)))},
    ],
)
def test_a_value_that_is_stored_may_have_any_length(stored: dict[str, str]) -> None:
    check_given(stored, stored)
    resolve(stored, KAFKA)


def test_an_error_repeats_a_limited_part_of_the_input() -> None:
    for config in ({"retention.ms": "\0" * 1_024}, {"x" * 500_000: "1"}):
        with pytest.raises(InvalidConfig) as caught:
            check(config)
        assert len(str(caught.value).encode()) < 4_200


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("cleanup.policy", "shrink", "String must be one of: compact, delete"),
        ("cleanup.policy", "compact,shrink", "String must be one of: compact, delete"),
        ("compression.type", "zstd", "as the producer sent them"),
        ("min.insync.replicas", "0", "at least 1"),
        ("min.insync.replicas", "17", "at most 16"),
        ("retention.ms", "-2", "at least -1"),
        ("retention.ms", "week", "whole number"),
        ("max.message.bytes", "4294967296", "expected a number from"),
        ("message.timestamp.type", "createtime", "CreateTime or LogAppendTime"),
    ],
)
def test_a_value_that_is_not_taken_is_refused_with_the_reason(key: str, value: str, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason) as caught:
        check({key: value})
    assert str(caught.value).startswith(f"{key}={value}: ")


def test_common_topic_configs_are_accepted() -> None:
    check({"segment.bytes": "52428800", "flush.ms": "1000", "cleanup.policy": "delete", "retention.ms": "-1"})


@pytest.mark.parametrize("key", TOPIC_KEYS, ids=lambda key: key.name)
def test_every_default_is_a_value_its_key_takes(key: object) -> None:
    entry = next(known for known in TOPIC_KEYS if known is key)
    assert entry.default is not None
    entry.parse(entry.default)


def test_what_stays_in_the_log_of_an_archived_topic_is_what_it_keeps_unless_less_is_said() -> None:
    def local(**given: str) -> tuple[int, int]:
        config = resolve({name.replace("_", "."): value for name, value in given.items()}, KAFKA)
        return config.local_retention_ms, config.local_retention_bytes

    assert local() == (7 * 24 * 3_600_000, -1)
    assert local(local_retention_ms="5", local_retention_bytes="6") == (5, 6)
    assert local(local_retention_ms="9", retention_ms="8", local_retention_bytes="-1", retention_bytes="7") == (8, 7)
    assert local(local_retention_ms="-1", retention_ms="-1") == (-1, -1)


def test_a_native_topic_has_no_archive_to_read_from() -> None:
    assert resolve({"remote.storage.enable": "TRUE"}, KAFKA).remote is True
    with pytest.raises(InvalidConfig, match="a native topic has no archive"):
        resolve({"remote.storage.enable": "true", "headrace.storage": "native"}, KAFKA)


@pytest.mark.parametrize("policy", ["compact", " compact ", "compact,delete", "delete, compact"])
def test_a_compacted_topic_checks_keys_and_drops_records_only_by_delete(policy: str) -> None:
    config = resolve({"cleanup.policy": policy, "retention.ms": "1000", "retention.bytes": "10"}, KAFKA)
    assert config.checks is not None
    assert config.checks.key
    expected = (1000, 10) if "delete" in policy else (-1, -1)
    assert (config.retention_ms, config.retention_bytes) == expected
    described = {entry.key.name: entry.value for entry in describe({"cleanup.policy": policy}, KAFKA)}
    assert described["cleanup.policy"] == policy.strip()


def test_a_topic_that_is_not_compacted_checks_nothing() -> None:
    assert resolve({}, KAFKA).checks is None
    assert resolve({"cleanup.policy": ""}, KAFKA).checks is None


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"headrace.storage": "native"}, "a native topic cannot be compacted"),
        ({"remote.storage.enable": "true"}, "Remote log storage is unsupported for the compacted topics"),
    ],
)
def test_a_topic_that_cannot_be_compacted(policy: str, other: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        resolve({"cleanup.policy": policy, **other}, KAFKA)


@pytest.mark.parametrize("empty", ["", " "])
def test_without_a_cleanup_policy_retention_drops_nothing(empty: str) -> None:
    given = {"retention.ms": "1000", "retention.bytes": "10"}
    config = resolve({"cleanup.policy": empty, **given}, TopicDefaults())
    assert (config.retention_ms, config.retention_bytes) == (-1, -1)
    config = resolve(given, TopicDefaults({"cleanup.policy": empty}))
    assert (config.retention_ms, config.retention_bytes) == (-1, -1)
    tiered = {"remote.storage.enable": "true", "local.retention.ms": "7", "cleanup.policy": empty, **given}
    config = resolve(tiered, TopicDefaults())
    # What the archive has goes from Redis all the same, and stays there.
    assert (config.retention_ms, config.local_retention_ms, config.local_retention_bytes) == (-1, 7, -1)
    for wrong in (",", "delete,", "none"):
        with pytest.raises(InvalidConfig):
            resolve({"cleanup.policy": wrong}, TopicDefaults())
