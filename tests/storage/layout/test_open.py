"""The script `open`, in every state that a log may be found in."""

from typing import Any

import pytest
import redis
from tests.harness.rawlog import RawLog, made

from headrace.topics.leader_epochs import EpochRow

SMALLER = "equal or smaller"


def stray(log: RawLog, entry_id: str = "*") -> bytes:
    found: bytes = log.link.xadd(log.stream, {"what": "ever"}, id=entry_id)
    return found


def last_id(log: RawLog) -> Any:
    return log.link.xinfo_stream(log.stream)["last-generated-id"]


def check_usable(log: RawLog, log_end: int) -> None:
    """A new leader finds this end, appends there, and fences the former one."""
    first = log.open()
    assert (first.log_end, first.set_aside) == (log_end, 0)
    assert log.put(first.term, log_end, 2) is not None
    second = log.open()
    assert second.log_end == log_end + 2
    assert second.term > first.term
    with pytest.raises(redis.ResponseError, match=SMALLER):
        log.put(first.term, log_end + 2)
    assert log.put(second.term, log_end + 2) is not None


# A log as it should be


def test_a_new_log_is_empty(log: RawLog) -> None:
    told = log.open(log_id="mine")
    assert told[1:7] == (0, 0, 0, -1, 0, 0)
    assert told.rows == (EpochRow(told.term, 0, told.term),)
    assert (told.log_id, told.set_aside, told.missing) == (b"mine", 0, 0)
    check_usable(log, 0)


def test_a_missing_log_is_made_only_where_that_was_asked_for(log: RawLog) -> None:
    with pytest.raises(redis.ResponseError, match="GONE"):
        log.open(create=False)
    assert log.link.keys() == []


def test_recovery_returns_the_log_end_and_fences_the_previous_leader(log: RawLog) -> None:
    first = log.fill(3, 2)
    second = log.open(create=False)
    assert (second.log_end, second.entries, second.newest, second.size) == (6, 3, 5, 600)
    assert second.rows == (EpochRow(first.term, 0, first.term), EpochRow(second.term, 6, second.term))
    assert second.log_id == first.log_id
    with pytest.raises(redis.ResponseError, match=SMALLER):
        log.put(first.term, 6)
    assert log.put(second.term, 6) == f"{second.term}-7".encode()


def test_an_owner_without_writes_leaves_no_row(log: RawLog) -> None:
    first = log.fill(1)
    for _ in range(5):
        last = log.open()
    assert last.rows == (EpochRow(first.term, 0, first.term), EpochRow(last.term, 1, last.term))


def test_terms_never_repeat(log: RawLog) -> None:
    terms = [log.open(least=least).term for least in (0, 0, 5, 0, 2_000_000_000, 0, 0)]
    assert terms == sorted(set(terms))
    # Also when Redis has forgotten all of it: they are seconds since 2026, and one more where that is not enough.
    log.link.delete(log.stream, log.state)
    assert log.open(least=terms[-1] + 1).term == terms[-1] + 1


def test_a_term_is_at_least_the_seconds_since_2026(log: RawLog) -> None:
    before = int(log.link.time()[0])
    told = log.open()
    assert before - 1_767_225_600 <= told.term <= int(log.link.time()[0]) - 1_767_225_600


def test_there_is_a_last_term(log: RawLog) -> None:
    assert log.open(least=2**31 - 1).term == 2**31 - 1
    with pytest.raises(redis.ResponseError, match="FOREIGN"):
        log.open()


def test_an_older_view_opens_nothing(log: RawLog) -> None:
    told = log.open(view=7)
    with pytest.raises(redis.ResponseError, match="FENCED"):
        log.open(view=6)
    # And has fenced no leader.
    assert log.put(told.term, 0) is not None
    assert log.open(view=7).log_end == 1


def test_a_full_redis_lets_a_log_be_opened(log: RawLog) -> None:
    log.fill(3)
    log.link.config_set("maxmemory", 1)
    told = log.open()
    assert told.log_end == 3
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        log.put(told.term, 3)


@pytest.mark.parametrize("make", ["set", "rpush", "hset"])
def test_something_else_under_the_key_is_left_alone(log: RawLog, make: str) -> None:
    getattr(log.link, make)(log.stream, *{"set": ["x"], "rpush": ["x"], "hset": ["x", "y"]}[make])
    with pytest.raises(redis.ResponseError, match="FOREIGN"):
        log.open()
    assert log.link.keys() == [log.stream.encode()]


def test_a_foreign_stream_is_not_changed(log: RawLog) -> None:
    stray(log)
    with pytest.raises(redis.ResponseError, match="FOREIGN"):
        log.open()
    assert log.link.keys() == [log.stream.encode()]
    assert log.link.xlen(log.stream) == 1


def test_an_opening_behind_a_trim_of_everything_goes_on_where_the_log_ended(log: RawLog) -> None:
    told = log.fill(3)
    log.save(told.term, 3)
    assert log.trim(told.term, before=3) == (3, 0)
    again = log.open()
    assert (again.log_start, again.log_end, again.entries, again.missing) == (3, 3, 0, 0)
    assert (again.newest, again.size) == (5, 300)
    check_usable(log, 3)


# Entries of another writer


@pytest.mark.parametrize("written", [0, 3])
@pytest.mark.parametrize("strays", [1, 7])
def test_stray_entries_at_the_end_are_set_aside(log: RawLog, written: int, strays: int) -> None:
    told = log.fill(written)
    ids = [stray(log) for _ in range(strays)]
    with pytest.raises(redis.ResponseError, match=SMALLER):
        log.put(told.term, written)
    again = log.open()
    assert (again.log_end, again.entries, again.set_aside, again.missing) == (written, written, len(ids), 0)
    kept = [fields for _, fields in log.link.xrange(log.foreign)]
    assert kept == [{b"id": each, b"what": b"ever"} for each in reversed(ids)]
    check_usable(log, written)


def test_a_stray_entry_in_the_present_term_is_set_aside(log: RawLog) -> None:
    told = log.fill(3)
    stray(log, f"{told.term}-500")
    again = log.open()
    assert (again.log_end, again.set_aside, again.missing) == (3, 1, 0)
    check_usable(log, 3)


def test_a_stray_entry_that_was_deleted_again_does_no_harm(log: RawLog) -> None:
    log.fill(3)
    log.link.xdel(log.stream, stray(log))
    again = log.open()
    assert (again.log_end, again.set_aside, again.missing) == (3, 0, 0)
    check_usable(log, 3)


def test_the_last_id_that_there_is_does_no_harm(log: RawLog) -> None:
    log.fill(3)
    stray(log, f"{2**64 - 1}-{2**64 - 1}")
    assert log.open().set_aside == 1
    check_usable(log, 3)


def test_a_stray_entry_with_many_fields_is_set_aside(log: RawLog) -> None:
    log.fill(1)
    log.link.xadd(log.stream, {f"field {number}": "x" for number in range(5_000)})
    assert log.open().set_aside == 1
    check_usable(log, 1)


def test_one_that_looks_like_a_batch_is_set_aside_all_the_same(log: RawLog) -> None:
    told = log.fill(1)
    log.link.xadd(log.stream, {"b": made(9, told.term), "t": 5, "s": 9}, id=f"{told.term}-9")
    again = log.open()
    assert (again.log_end, again.set_aside) == (1, 1)


# Deleted entries


def test_deleted_last_entries_are_reported_missing_and_their_offsets_not_reused(log: RawLog) -> None:
    told = log.fill(5)
    log.link.xdel(log.stream, f"{told.term}-5", f"{told.term}-4")
    again = log.open()
    assert (again.log_end, again.entries, again.missing) == (5, 3, 2)
    check_usable(log, 5)


def test_the_last_ones_deleted_and_a_stray_one_behind_them(log: RawLog) -> None:
    told = log.fill(5)
    log.link.xdel(log.stream, f"{told.term}-5", f"{told.term}-4")
    stray(log)
    again = log.open()
    assert (again.log_end, again.entries, again.missing, again.set_aside) == (5, 3, 2, 1)
    check_usable(log, 5)


def test_all_entries_deleted(log: RawLog) -> None:
    log.fill(5)
    log.link.xtrim(log.stream, maxlen=0, approximate=False)
    again = log.open()
    assert (again.log_start, again.log_end, again.entries, again.missing) == (0, 5, 0, 5)
    check_usable(log, 5)


def test_offsets_known_outside_of_a_deleted_stream_are_not_reused(log: RawLog) -> None:
    first = log.fill(5)
    second = log.fill(2)
    log.save(second.term, 6)
    log.link.delete(log.stream)
    assert log.put(second.term, 7) is None
    again = log.open()
    assert (again.log_end, again.entries, again.missing) == (6, 0, 6)
    assert [row.first for row in again.rows] == [0, 5, 6]
    assert again.rows[0].term == first.term
    check_usable(log, 6)


# Lost state


def test_lost_state_is_rebuilt_from_the_entries(log: RawLog) -> None:
    terms = [log.fill(2).term for _ in range(3)]
    told = log.fill(0)
    log.save(told.term, 6)
    log.trim(told.term, before=1)
    log.link.delete(log.state)
    again = log.open(log_id="other", create=False)
    assert (again.log_start, again.log_end, again.entries, again.snapshot) == (1, 6, 5, 1)
    assert again.rows[:-1] == tuple(EpochRow(term, max(1, 2 * place), term) for place, term in enumerate(terms))
    assert again.log_id == b"other"
    assert [log.read(offset)[0].base_offset for offset in range(1, 6)] == [1, 2, 3, 4, 5]
    check_usable(log, 6)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_without_its_state_and_with_a_stray_entry_between_two_terms_nothing_is_lost(log: RawLog, at: int) -> None:
    terms = [log.open(least=least).term for least in (10**9, 10**9 + 10)]
    log.link.delete(log.stream, log.state)
    log.link.xadd(log.stream, {"b": made(0, terms[0]), "t": 5, "s": 100}, id=f"{terms[0]}-1")
    places = [f"{terms[0]}-9", f"{terms[0] + 5}-0", f"{terms[1]}-1"]
    stray(log, places[at])
    log.link.xadd(log.stream, {"b": made(1, terms[1]), "t": 5, "s": 200}, id=f"{terms[1]}-2")
    again = log.open(create=False)
    assert (again.log_start, again.log_end, again.set_aside) == (0, 2, 0)
    assert [row.first for row in again.rows] == [0, 1, 2]
    assert log.offsets() == [(0, 1), (1, 2)]
    assert [log.read(offset, 2)[0].base_offset for offset in (0, 1)] == [0, 1]


def test_without_its_state_and_empty_a_log_begins_again(log: RawLog) -> None:
    told = log.fill(3)
    log.save(told.term, 3)
    log.trim(told.term, before=3)
    log.link.delete(log.state)
    with pytest.raises(redis.ResponseError, match="GONE"):
        log.open(create=False)
    assert log.open().log_end == 0


# Entries are found by offset, whatever happened


def test_batches_stored_again_keep_their_leader_epoch(log: RawLog) -> None:
    first = log.fill(2)
    second = log.open(resume=True)
    assert second.rows[-1] == EpochRow(first.term, 2, second.term)
    length, rows = log.restore(second.term, (2, 3), (5, 1))
    assert length == 4
    assert rows == ((first.term, 0, first.term), (first.term, 2, second.term), (second.term, 6, second.term))
    assert log.offsets() == [(0, 1), (1, 2), (2, 5), (5, 6)]
    assert [log.read(offset)[0].base_offset for offset in range(6)] == [0, 1, 2, 2, 2, 5]
    check_usable(log, 6)


def test_a_resumption_that_was_cut_short_is_gone_on_with(log: RawLog) -> None:
    first = log.fill(2)
    terms = []
    for place in range(3):
        told = log.open(resume=True)
        terms.append(told.term)
        assert told.rows[-1] == EpochRow(first.term, 2 + place, told.term)
        log.restore(told.term, (2 + place, 1), finish=False)
    told = log.open(resume=True)
    assert log.restore(told.term)[1] == (
        EpochRow(first.term, 0, first.term), *(EpochRow(first.term, 2 + n, term) for n, term in enumerate(terms)),
        EpochRow(told.term, 5, told.term),
    )  # fmt: skip
    check_usable(log, 5)


def test_a_resumption_with_nothing_to_store_goes_on_under_its_own_epoch(log: RawLog) -> None:
    first = log.fill(2)
    told = log.open(resume=True)
    assert log.restore(told.term)[1] == (EpochRow(first.term, 0, first.term), EpochRow(told.term, 2, told.term))
    # Of a log that was never written to, too.
    log.link.flushall()
    told = log.open(resume=True)
    assert log.restore(told.term)[1] == (EpochRow(told.term, 0, told.term),)


def test_only_the_owner_stores_again(log: RawLog) -> None:
    first = log.open()
    log.open()
    with pytest.raises(redis.ResponseError, match="FENCED"):
        log.restore(first.term, (0, 1))
    log.link.delete(log.state)
    with pytest.raises(redis.ResponseError, match="GONE"):
        log.restore(first.term, (0, 1))


def test_nothing_brings_a_stream_back(log: RawLog) -> None:
    told = log.fill(1)
    log.link.delete(log.stream)
    assert log.put(told.term, 1) is None
    with pytest.raises(redis.ResponseError, match="GONE"):
        log.restore(told.term, (1, 1))
    assert not log.link.exists(log.stream)
