"""The options of format("headrace"), without Spark."""

import pytest

from headrace.spark import options
from headrace.spark.errors import OptionError
from headrace.spark.options import EARLIEST, LATEST

REDIS = "redis://127.0.0.1:1/0"


def parse(default_redis: str | None = REDIS, **given: str) -> options.SourceOptions:
    return options.parse({"subscribe": "t", **given}, default_redis=default_redis)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    parsed = parse()
    assert (parsed.topic, parsed.redis, parsed.starting, parsed.ending) == ("t", REDIS, None, None)
    assert parsed.fail_on_data_loss
    assert not parsed.include_headers
    assert parsed.group is None
    assert (parsed.max_offsets, parsed.min_offsets, parsed.min_partitions) == (None, None, None)


def test_names_are_case_insensitive() -> None:
    parsed = options.parse(
        {"SUBSCRIBE": "t", "startingoffsets": "EARLIEST", "IncludeHeaders": "True", "maxoffsetspertrigger": "7"},
        default_redis=REDIS,
    )
    assert parsed.starting == EARLIEST
    assert parsed.include_headers
    assert parsed.max_offsets == 7


def test_the_option_goes_over_the_environment() -> None:
    assert parse(redis="unix:///run/valkey.sock").redis == "unix:///run/valkey.sock"


def test_offsets_as_json() -> None:
    assert parse(startingOffsets='{"t":{"0":23,"1":-2,"2":-1}}').starting == {0: 23, 1: EARLIEST, 2: LATEST}


def test_offsets_survive_the_way_to_json_and_back() -> None:
    text = options.positions_json("t", {10: 5, 2: EARLIEST})
    assert parse(startingOffsets=text).starting == {2: EARLIEST, 10: 5}


@pytest.mark.parametrize(
    ("given", "part_of_message"),
    [
        ({"subscribe": ""}, "must name the topic"),
        ({"subscribe": "a,b"}, "exactly one topic"),
        ({"startingOffset": "earliest"}, "unknown option 'startingOffset'"),
        ({"path": "/tmp/x"}, "unknown option 'path'"),
        ({"startingOffsets": "oldest"}, "earliest, latest or JSON"),
        ({"startingOffsets": '{"t":5}'}, "earliest, latest or JSON"),
        ({"startingOffsets": '{"u":{"0":1}}'}, "offsets of 't' alone"),
        ({"startingOffsets": '{"t":{"x":1}}'}, "where a partition number belongs"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "an offset, -1 (latest) or -2 (earliest)"),
        ({"startingOffsets": '{"t":{"0":"7"}}'}, "an offset, -1 (latest) or -2 (earliest)"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"maxOffsetsPerTrigger": "0"}, "whole number above 0"),
        ({"maxOffsetsPerTrigger": "many"}, "whole number above 0"),
        ({"minPartitions": "-1"}, "whole number above 0"),
        ({"maxTriggerDelay": "soon"}, "such as 500ms"),
        ({"consumerGroup": "g"}, "needs 'kafka.bootstrap.servers'"),
        ({"kafka.bootstrap.servers": "127.0.0.1:9092"}, "only for committing positions"),
        ({"consumerGroup": "", "kafka.bootstrap.servers": "127.0.0.1:9092"}, "'consumerGroup' is empty"),
    ],
)
def test_refusals_are_one_clear_line(given: dict[str, str], part_of_message: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse(**given)
    assert part_of_message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_any_storage_url() -> None:
    with pytest.raises(OptionError, match="HEADRACE_REDIS"):
        parse(default_redis=None)


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"t":{"0":-1}}'},
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
