"""Where reads start and end, without Spark."""

import json

import pytest

from headrace.client.errors import OptionError
from headrace.client.offsets import Extent, Offsets, TopicPartition
from headrace.spark.source import offset_bounds
from headrace.spark.source.offset_bounds import LookUp, Strategy

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOG = {P0: Extent(10, 100), P1: Extent(0, 5)}


def found(**offsets: int | None) -> LookUp:
    """A look-up by time that knows the answer for partitions `p0`, `p1`."""
    return lambda times: {one: offsets[f"p{one.partition}"] for one in times}


NOTHING = found()


def resolve(
    given: dict[str, str], *, ending: bool = False, look_up: LookUp = NOTHING, strategy: Strategy = "error"
) -> Offsets:
    edge = "ending" if ending else "starting"
    parsed = offset_bounds.parse(edge, {name.lower(): value for name, value in given.items()})  # type: ignore[arg-type]
    assert parsed is not None
    return offset_bounds.resolve(edge, parsed, LOG, look_up=look_up, strategy=strategy)  # type: ignore[arg-type]


def test_words_and_offsets() -> None:
    assert resolve({"startingOffsets": "Earliest"}) == {P0: 10, P1: 0}
    assert resolve({"startingOffsets": "latest"}) == {P0: 100, P1: 5}
    assert resolve({"endingOffsets": '{"t":{"0":23,"1":-1}}'}, ending=True) == {P0: 23, P1: 5}
    assert offset_bounds.parse("starting", {}) is None


def test_times_override_offsets_and_one_time_overrides_all() -> None:
    by_partition = {"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"t":{"0":5,"1":6}}'}
    assert resolve(by_partition, look_up=found(p0=40, p1=2)) == {P0: 40, P1: 2}
    seen: list[int] = []

    def look_up(times: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        seen.extend(times.values())
        return dict.fromkeys(times, 3)

    assert resolve({**by_partition, "startingTimestamp": "77"}, look_up=look_up) == {P0: 10, P1: 3}  # type: ignore[arg-type]
    assert seen == [77, 77]


def test_a_time_that_no_record_has_reached() -> None:
    late = {"startingTimestamp": "9"}
    with pytest.raises(OptionError, match=r"t-1 has no record at or after 9 ms.*Strategy=latest"):
        resolve(late, look_up=found(p0=40, p1=None))
    assert resolve(late, look_up=found(p0=40, p1=None), strategy="latest") == {P0: 40, P1: 5}
    assert resolve({"endingTimestamp": "9"}, ending=True, look_up=found(p0=40, p1=None)) == {P0: 40, P1: 5}


@pytest.mark.parametrize("offsets", [{"0": 1}, {"0": 1, "1": 1, "2": 1}])
@pytest.mark.parametrize("name", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_json_names_every_partition_and_no_other(name: str, offsets: dict[str, int]) -> None:
    with pytest.raises(OptionError, match=f"{name}.*partitions"):
        resolve({name: json.dumps({"t": offsets})}, look_up=found(p0=1, p1=1))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("startingOffsets", "oldest", "earliest, latest or JSON"),
        ("startingOffsets", '{"t":5}', "earliest, latest or JSON"),
        ("startingOffsets", '{"t":{"x":1}}', "where a partition number belongs"),
        ("startingOffsets", '{"t":{"0":-3}}', "an offset, -1 (latest) or -2 (earliest)"),
        ("startingOffsets", '{"t":{"0":"7"}}', "an offset, -1 (latest) or -2 (earliest)"),
        ("startingOffsetsByTimestamp", "latest", "must be JSON"),
        ("startingOffsetsByTimestamp", '{"t":{"0":-1}}', "a time in milliseconds"),
        ("startingTimestamp", "yesterday", "milliseconds since 1970"),
    ],
)
def test_refusals(name: str, value: str, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        resolve({name: value})
    assert message in str(refused.value)
