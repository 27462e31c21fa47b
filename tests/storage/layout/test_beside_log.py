"""The scripts for the keys next to a log, and offset -> entry with many fencing epochs, checked against a list."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.owning import epoch_of
from tests.harness.rawlog import RawLog, made

from headrace.storage.layout import entries, partition
from headrace.topics.producer_state import ProducerStateEntry, SentBatch

OWNERS: dict[str, Callable[[RawLog, int], Any]] = {
    "snapshot": lambda log, term: log.save(term, 0),
    "trim": lambda log, term: log.trim(term),
    "restore": lambda log, term: log.restore(term),
    "mirror_position": lambda log, term: mirror(log, term, "g", "0-0"),
    "clean_advance": lambda log, term: log.run(
        "clean_advance", [log.stream, log.state, log.clean, f"{log.clean}:0"], term, 0, 0, 1
    ),
    "clean_write": lambda log, term: log.run(
        "clean_write", [log.state, log.clean, f"{log.clean}:0"], term, 0, 1, made(0, term), 5
    ),
    "clean_swap": lambda log, term: log.run(
        "clean_swap", [log.state, log.clean, f"{log.clean}:1", f"{log.clean}:0"], term, 1, 0
    ),
    "clean_close": lambda log, term: log.run("clean_close", [log.state, log.clean, f"{log.clean}:0"], term, 0),
}


def mirror(log: RawLog, term: int, group: str, last: str) -> None:
    log.run("mirror_position", [log.stream, log.state], term, group, last)


# Who is not the owner any more writes nothing


@pytest.mark.parametrize("name", OWNERS)
def test_a_term_that_is_over_writes_nothing(log: RawLog, name: str) -> None:
    first = log.fill(1)
    log.open()
    before = {key: log.link.dump(key) for key in log.link.scan_iter()}
    with pytest.raises(redis.ResponseError, match="FENCED"):
        OWNERS[name](log, first.term)
    assert {key: log.link.dump(key) for key in log.link.scan_iter()} == before


@pytest.mark.parametrize("name", OWNERS)
def test_nothing_is_made_again_of_a_log_that_is_gone(log: RawLog, name: str) -> None:
    told = log.fill(1)
    log.run("drop", [log.stream, log.state, log.producers, log.foreign, "t", "a", log.clean], 1)
    assert log.link.keys() == []
    with pytest.raises(redis.ResponseError, match="GONE"):
        OWNERS[name](log, told.term)
    assert log.put(told.term, 1) is None
    assert log.link.keys() == []


def test_an_older_view_drops_nothing(log: RawLog) -> None:
    log.open(view=2)
    with pytest.raises(redis.ResponseError, match="FENCED"):
        log.run("drop", [log.stream, log.state, log.producers, log.foreign, "t", "a", log.clean], 1)
    assert log.link.exists(log.stream, log.state) == 2


# Snapshots


def test_a_snapshot_is_read_as_it_was_written(log: RawLog) -> None:
    told = log.fill(2)
    known = ProducerStateEntry(3, (SentBatch(5, 9, 1), SentBatch(2**31 - 1, 4, 0)), 1_700_000_000_000)
    log.save(told.term, 2, 7, partition.encode_producer(known), 8, partition.encode_producer(ProducerStateEntry(0)))
    log.save(told.term, 2, 8, "")
    found = log.link.hgetall(log.producers)
    assert {name: partition.decode_producer(value) for name, value in found.items()} == {b"7": known}
    assert log.open().snapshot == 2


def test_a_full_redis_takes_snapshots_and_trims(log: RawLog) -> None:
    """Retention is what makes room again, and it never goes beyond the snapshot."""
    told = log.fill(4)
    log.link.config_set("maxmemory", 1)
    log.save(told.term, 4, 7, partition.encode_producer(ProducerStateEntry(0)))
    assert log.trim(told.term, before=3) == (3, 1)


# Trimming


def test_nothing_beyond_the_snapshot_is_trimmed(log: RawLog) -> None:
    told = log.fill(5, 2)
    assert log.trim(told.term, before=10) == (0, 5)
    log.save(told.term, 5)
    for how, value in {"before": 10, "oldest": 99, "most": 0}.items():
        assert log.trim(told.term, **{how: value})[0] == 5
    assert log.offsets() == [(4, 6), (6, 8), (8, 10)]
    log.save(told.term, 10)
    assert log.trim(told.term, oldest=99) == (10, 0)


def test_rows_before_the_log_start_go_but_for_the_one_that_holds_it(log: RawLog) -> None:
    told = [log.fill(2) for _ in range(4)][-1]
    log.save(told.term, 8)
    assert log.trim(told.term, before=3) == (3, 5)
    assert [row.first for row in log.open().rows] == [2, 4, 6, 8]


ASKED: dict[str, Callable[[RawLog, int], Any]] = {
    "trim": lambda log, term: log.trim(term, oldest=3),
    "find": lambda log, _: log.find(3),
}


@pytest.mark.parametrize("ask", ASKED)
def test_a_stray_entry_is_reported_by_each_reader(log: RawLog, ask: str) -> None:
    told = log.fill(2)
    log.link.xadd(log.stream, {"what": "ever"})
    with pytest.raises(redis.ResponseError, match="STRAY"):
        ASKED[ask](log, told.term)
    told = log.open()
    log.save(told.term, 2)
    assert log.find(3) == 0
    assert log.trim(told.term, oldest=9) == (2, 0)


# Positions


def test_a_position_is_shown_as_a_redis_consumer_group(log: RawLog) -> None:
    terms = [log.fill(2, 2).term for _ in range(2)]
    epochs = partition.epochs(log.link.hget(log.state, "l"))
    shown = []
    for position in range(9):
        mirror(log, terms[-1], "g", entries.position_id(epochs, position))
        (group,) = log.link.xinfo_groups(log.stream)
        shown.append(group["last-delivered-id"].decode())
    first, second = terms
    assert shown == ["0-0", *(f"{first}-{n}" for n in range(1, 5)), *(f"{second}-{n}" for n in range(5, 9))]


# Properties: a log of many terms against a list


spans = st.lists(st.lists(st.integers(1, 4), max_size=4), min_size=1, max_size=8)


def written(log: RawLog, by_term: list[list[int]], start: int = 0) -> list[tuple[int, int, int]]:
    """One opening for each list of spans: (base, next, term)s. `start`: where the first one begins."""
    log.link.flushall()
    offset = start
    batches = []
    for number, owner in enumerate(by_term):
        told = log.open()
        if number == 0 and start:
            log.link.hset(log.state, mapping={"b": start, "o": start, "l": f"{told.term}:{start}:{told.term}"})
        for span in owner:
            assert log.put(told.term, offset, span, time=offset - start)
            batches.append((offset, offset + span, told.term))
            offset += span
    return batches


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(by_term=spans, start=st.sampled_from([0, 10**15, 2**53 - 200]))
def test_the_batch_of_an_offset_is_one_look_away_in_any_term(log: RawLog, by_term: list[list[int]], start: int) -> None:
    batches = written(log, by_term, start)
    end = batches[-1][1] if batches else start
    told = log.open()
    assert (told.log_end, told.entries, told.missing) == (end, len(batches), 0)
    for base, following, _ in batches:
        for offset in range(base, following):
            assert [(found.base_offset, found.next_offset) for found in log.read(offset)] == [(base, following)]
    assert log.read(end) == []
    epochs = partition.epochs(log.link.hget(log.state, "l"))
    for base, following, term in batches:
        assert epochs.term_of(base) == epochs.term_of(following - 1) == epoch_of(epochs, base) == term
        bounded = log.link.xrange(log.stream, entries.range_start(epochs, start), entries.range_end(epochs, following))
        assert len(bounded) == batches.index((base, following, term)) + 1
    answer = log.run("extent", [log.stream, log.state, log.clean])
    assert partition.extent(answer)[:2] == (start, end)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(by_term=spans, data=st.data())
def test_trims_and_times_go_by_what_a_list_would(log: RawLog, by_term: list[list[int]], data: st.DataObject) -> None:
    batches = written(log, by_term)
    end = batches[-1][1] if batches else 0
    told = log.open()
    saved = data.draw(st.integers(0, end), "snapshot")
    log.save(told.term, saved)
    for time in data.draw(st.lists(st.integers(0, end + 1), max_size=3), "times"):
        assert log.find(time) == next((base for base, _, _ in batches if base >= time), None)
    start = 0
    for how, value in data.draw(
        st.lists(st.tuples(st.sampled_from(["oldest", "most", "before"]), st.integers(0, end + 2)), max_size=4), "trims"
    ):
        sizes = list(accumulate([100 * (following - base) for base, following, _ in batches]))
        if how == "before":
            wanted = value
        elif how == "oldest":
            wanted = next((base for base, _, _ in batches if base >= value), end)
        else:
            # A batch goes as long as those behind it alone have so many bytes.
            total = sizes[-1] if sizes else 0
            most = total - 100 * value
            wanted = next((base for (base, _, _), upto in zip(batches, sizes, strict=True) if upto > most), end)
        start = max(start, min(wanted, saved))
        left = [each for each in batches if each[1] > start]
        assert log.trim(told.term, **{how: 100 * value if how == "most" else value}) == (start, len(left))
        assert log.offsets() == [each[:2] for each in left]
    again = log.open()
    assert (again.log_start, again.log_end, again.missing) == (start, end, 0)
