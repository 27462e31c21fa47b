"""The options of format("headrace"), without Spark."""

import pytest

from headrace.client.errors import OptionError
from headrace.client.offsets import TopicPartition
from headrace.spark.source import options
from headrace.spark.source.offset_bounds import EARLIEST, Everywhere
from headrace.spark.source.topic_log import Subscription

REDIS = "redis://127.0.0.1:1/0"


def parse(default_redis: str | None = REDIS, **given: str) -> options.SourceOptions:
    return options.parse({"subscribe": "t", **given}, default_redis=default_redis)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    parsed = parse()
    assert (parsed.subscription.names, parsed.redis, parsed.starting, parsed.ending) == (("t",), REDIS, None, None)
    assert parsed.fail_on_data_loss
    assert not parsed.include_headers
    assert parsed.group is None
    assert (parsed.max_offsets, parsed.min_offsets, parsed.min_partitions) == (None, None, None)


def test_names_are_case_insensitive() -> None:
    parsed = options.parse(
        {"SUBSCRIBE": "t", "startingoffsets": "EARLIEST", "IncludeHeaders": "True", "maxoffsetspertrigger": "7"},
        default_redis=REDIS,
    )
    assert parsed.starting == Everywhere(EARLIEST)
    assert parsed.include_headers
    assert parsed.max_offsets == 7


def test_the_option_overrides_the_environment() -> None:
    assert parse(redis="unix:///run/valkey.sock").redis == "unix:///run/valkey.sock"


def test_what_is_read() -> None:
    assert parse(subscribe="b, a,b").subscription == Subscription(names=("b", "a"))
    assert options.parse({"subscribePattern": "t.*"}, default_redis=REDIS).subscription.wants("tt")
    assigned = options.parse({"assign": '{"t":[1,0]}'}, default_redis=REDIS).subscription
    assert assigned.assigned == (TopicPartition("t", 1), TopicPartition("t", 0))


def test_where_it_is_read_from() -> None:
    by_kafka = parse(**{"kafka.bootstrap.servers": "127.0.0.1:9092"})
    assert by_kafka.redis is None
    assert by_kafka.kafka is not None
    assert by_kafka.kafka.servers == (("127.0.0.1", 9092),)
    assert parse(**{"kafka.bootstrap.servers": "127.0.0.1:9092", "redis": REDIS}).redis == REDIS


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # All of "Structured Streaming + Kafka Integration Guide" but the three that say what is read.
        ("startingTimestamp", "1000"),
        ("startingOffsetsByTimestamp", '{"t":{"0":1000}}'),
        ("startingOffsets", '{"t":{"0":23,"1":-2}}'),
        ("startingOffsetsByTimestampStrategy", "latest"),
        ("endingTimestamp", "1000"),
        ("endingOffsetsByTimestamp", '{"t":{"0":1000}}'),
        ("endingOffsets", '{"t":{"0":50,"1":-1}}'),
        ("failOnDataLoss", "false"),
        ("includeHeaders", "true"),
        ("maxOffsetsPerTrigger", "5"),
        ("minOffsetsPerTrigger", "5"),
        ("maxTriggerDelay", "10m"),
        ("minPartitions", "5"),
        ("maxRecordsPerPartition", "5"),
        ("kafka.isolation.level", "read_committed"),
    ],
)
def test_every_option_of_sparks_kafka_source_says_something(name: str, text: str) -> None:
    servers = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
    assert parse(**servers, **{name: text}) != parse(**servers)


@pytest.mark.parametrize(
    "name",
    [
        *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix"),
        *("kafka.group.id", "kafka.max.poll.records", "kafka.client.rack", "kafka.partition.assignment.strategy"),
    ],
)
def test_what_only_a_jvm_client_needs_changes_nothing(name: str) -> None:
    servers = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
    assert parse(**servers, **{name: "5"}) == parse(**servers)


@pytest.mark.parametrize(
    ("given", "part_of_message"),
    [
        ({"kafka.auto.offset.reset": "earliest"}, "set 'startingOffsets' instead"),
        ({"kafka.enable.auto.commit": "true"}, "set 'consumerGroup'"),
        ({"kafka.key.deserializer": "x"}, "keys are binary columns"),
        ({"kafka.value.serializer": "x"}, "values are binary or string"),
        ({"kafka.interceptor.classes": "x"}, "no JVM client to intercept"),
        ({"kafka.sasl.kerberos.service.name": "kafka"}, "Kerberos is not spoken"),
        ({"kafka.ssl.truststore.password": "x"}, "give PEM"),
        ({"subscribe": ""}, "must name topics"),
        ({"subscribePattern": "a"}, "not subscribe and subscribePattern"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
        ({"path": "/tmp/x"}, "unknown option 'path'"),
        ({"startingOffsets": "oldest"}, "earliest, latest or JSON"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"maxOffsetsPerTrigger": "0"}, "whole number above 0"),
        ({"maxOffsetsPerTrigger": "many"}, "whole number above 0"),
        ({"minPartitions": "-1"}, "whole number above 0"),
        ({"maxTriggerDelay": "soon"}, "such as 500ms"),
        ({"consumerGroup": "g"}, "needs 'kafka.bootstrap.servers'"),
        ({"maxBytesPerTrigger": "much"}, "such as 1048576, 512k or 64m"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "must be error or latest"),
        ({"unreadableBatchesPath": "/tmp/x"}, "goes with unreadableBatches=skip"),
        ({"kafka.client.id": "me"}, "needs 'kafka.bootstrap.servers'"),
        ({"kafka.bootstrap.server": "127.0.0.1:9092"}, "did you mean 'kafka.bootstrap.servers'?"),
        ({"consumerGroup": "", "kafka.bootstrap.servers": "127.0.0.1:9092"}, "'consumerGroup' is empty"),
    ],
)
def test_refusals_are_one_clear_line(given: dict[str, str], part_of_message: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse(**given)
    assert part_of_message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_isolation_level_needs_no_kafka_server() -> None:
    isolation = {"kafka.isolation.level": "read_committed"}
    assert parse(**isolation).read_committed
    assert parse(**isolation, redis="redis://there:1").kafka is None
    assert parse(**isolation, **{"kafka.bootstrap.servers": "127.0.0.1:9092"}).read_committed
    assert not parse(**{"kafka.isolation.level": "read_uncommitted"}).read_committed
    with pytest.raises(OptionError, match="must be one of read_uncommitted, read_committed"):
        parse(**{"kafka.isolation.level": "serializable"})
    with pytest.raises(OptionError, match="no server named"):
        parse(**isolation, default_redis=None)
    with pytest.raises(OptionError, match=r"'kafka.client.id' needs 'kafka.bootstrap.servers'"):
        parse(**isolation, **{"kafka.client.id": "me"})


def test_without_any_storage_url() -> None:
    with pytest.raises(OptionError, match="no server named"):
        parse(default_redis=None)


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"t":{"0":-1}}'},
        {"maxBytesPerTrigger": "5m"},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"t":{"0":-2}}'},
        {"maxOffsetsPerTrigger": "5"},
        {"consumerGroup": "g", "kafka.bootstrap.servers": "127.0.0.1:9092"},
    ],
)
def test_what_a_batch_read_cannot_do(given: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        options.check_batch(parse(**given))


@pytest.mark.parametrize(
    "given", [{"endingOffsets": "latest"}, {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}]
)
def test_what_a_stream_cannot_do(given: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        options.check_streaming(parse(**given))


def test_durations() -> None:
    assert parse(maxTriggerDelay="500ms").max_delay_ms == 500
    assert parse(maxTriggerDelay="15m").max_delay_ms == 900_000
    assert [parse(maxBytesPerTrigger=text).max_bytes for text in ("7", "7b", "2k", "3 MB")] == [7, 7, 2048, 3 << 20]
