"""A share partition against a model with a state for each offset, and the rules of acknowledgements and writes."""

import time
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from headrace.groups.sharing.partition import AckBatch, AckProblem, SharePartition, ShareSettings, Span
from headrace.groups.sharing.state import NOT_BEGUN, RecordState, ShareState

START = 10
LOCK = 100
AVAILABLE, ACQUIRED, DEAD, DONE = RecordState.AVAILABLE, RecordState.ACQUIRED, RecordState.DEAD, RecordState.DONE


@dataclass
class Offset:
    state: RecordState
    count: int = 0
    member: str = ""
    until: int = 0
    decision: RecordState | None = None
    sent: bool = False

    @property
    def held(self) -> bool:
        return self.state is ACQUIRED and self.decision is None


@dataclass
class Model:
    """A share partition, offset by offset."""

    settings: ShareSettings
    offsets: dict[int, Offset] = field(default_factory=dict)
    spso: int = START
    speo: int = START
    writing: bool = False
    stored: int = START
    stored_before: int = START

    @property
    def is_behind(self) -> bool:
        return self.spso == self.speo > self.stored

    def after(self, each: Offset) -> RecordState:
        return AVAILABLE if each.count < self.settings.delivery_limit else self.archived

    @property
    def archived(self) -> RecordState:
        return DEAD if self.settings.dead_letters else DONE

    def advance(self) -> None:
        while self.spso in self.offsets and self.offsets[self.spso].state is DONE:
            del self.offsets[self.spso]
            self.spso += 1

    def acquire(  # noqa: C901, PLR0912 - the rules in one place, offset by offset
        self, member: str, at: int, batches: list[tuple[int, int]], most: int, until: int, exact: bool, skips: set[int]
    ) -> dict[int, int]:
        got: dict[int, int] = {}
        limit, slowed, spso = most, False, self.spso
        here = {o: n for n, (a, b) in enumerate(batches) for o in range(a, b + 1) if o not in skips}
        end = max([*skips, *(b for _, b in batches)], default=-1)
        for batch, grouped in groupby(range(at, end + 1), lambda o: here.get(o, -1)):
            segment = [o for o in grouped if o >= spso]
            if not segment:
                continue
            if batch == -1:
                for o in segment:
                    if o >= self.speo or self.offsets[o].state is AVAILABLE:
                        self.offsets[o] = Offset(DONE)
                        self.speo = max(self.speo, o + 1)
                continue
            stop = False
            for o in segment:
                if o >= self.speo or self.offsets[o].state is not AVAILABLE:
                    continue
                count = self.offsets[o].count
                cap = self.cap(count, most)
                if cap is not None:
                    limit, slowed = min(limit, cap), True
                if (exact or slowed) and len(got) >= limit:
                    stop = True
                    break
                got[o] = count + 1
                self.offsets[o] = Offset(ACQUIRED, count + 1, member, until)
            new = [o for o in segment if o >= self.speo]
            room = spso + self.settings.window - self.speo
            if stop or (new and room <= 0):
                break
            if exact or len(new) > self.settings.window:
                new = new[:room]
            if exact or slowed:
                new = new[: max(0, limit - len(got))]
            for o in new:
                got[o] = 1
                self.offsets[o] = Offset(ACQUIRED, 1, member, until)
                self.speo = o + 1
            if self.speo <= segment[-1] or len(got) >= limit:
                break
        self.advance()
        return got

    def cap(self, count: int, most: int) -> int | None:
        if count and count + 1 >= self.settings.delivery_limit:
            return 1
        half = max(2, -(-self.settings.delivery_limit // 2))
        return max(1, int(most / 2 ** (count - half + 1))) if count >= half else None

    def acknowledge(self, member: str, batches: list[AckBatch], now: int, renew_until: int | None) -> AckProblem | None:
        last = -1
        changes: dict[int, Offset] = {}
        for a, b, types in batches:
            if a <= last or a > b or len(types) not in {1, b - a + 1} or any(each > 4 for each in types):
                return AckProblem.INVALID_REQUEST
            if renew_until is None and 4 in types:
                return AckProblem.INVALID_REQUEST
            last = b
        for a, b, types in batches:
            if b >= max(self.speo, self.spso) and b >= self.spso:
                return AckProblem.INVALID_REQUEST
            for o in range(max(a, self.spso), b + 1):
                each = self.offsets[o]
                kind = types[0] if len(types) == 1 else types[o - a]
                if not each.held or each.member != member or each.until <= now:
                    return AckProblem.INVALID_RECORD_STATE
                if kind == 4:
                    assert renew_until is not None
                    changes[o] = Offset(ACQUIRED, each.count, member, renew_until)
                else:
                    decision = {0: DONE, 1: DONE, 2: self.after(each), 3: self.archived}[kind]
                    changes[o] = Offset(ACQUIRED, each.count, member, each.until, decision)
        self.offsets.update(changes)
        return None

    def expire(self, now: int) -> None:
        for each in self.offsets.values():
            if each.held and each.until <= now:
                each.decision = self.after(each)

    def release(self, member: str) -> None:
        for each in self.offsets.values():
            if each.held and each.member == member:
                each.decision, each.member, each.until = self.after(each), "", 0

    def dead_lettered(self, a: int, b: int) -> None:
        for o in range(a, b + 1):
            if o in self.offsets and self.offsets[o].state is DEAD and self.offsets[o].decision is None:
                self.offsets[o].decision = DONE

    def prepare(self) -> str | None:
        waits = any(each.decision and not each.sent for each in self.offsets.values())
        if self.writing or not (waits or self.is_behind):
            return None
        self.writing = True
        for each in self.offsets.values():
            each.sent = each.decision is not None
        text = self.text()
        self.stored_before, self.stored = self.stored, int(text.split()[1])
        return text

    def text(self) -> str:
        words: list[tuple[str, int]] = []
        spso = self.spso
        for o in range(self.spso, self.speo):
            each = self.offsets[o]
            state = each.decision or each.state
            word = "d" if state is DONE else f"{'x' if state is DEAD else 'a'}{each.count}"
            if word == "d" and not words:
                spso = o + 1
            elif words and words[-1][0] == word:
                words[-1] = (word, words[-1][1] + 1)
            else:
                words.append((word, 1))
        runs = ",".join(f"{length}{word}" for word, length in words)
        return f"7 {spso} {runs}" if runs else f"7 {spso}"

    def end_write(self, stored: bool) -> None:
        self.writing = False
        self.stored = self.stored if stored else self.stored_before
        for o, each in self.offsets.items():
            if each.sent and stored:
                assert each.decision is not None
                self.offsets[o] = Offset(each.decision, 0 if each.decision is DONE else each.count)
            elif each.sent:
                each.sent = False
                if each.state is not DEAD:
                    each.decision = None
        self.advance()

    def cut(self, offset: int) -> None:
        self.stored = max(self.stored, offset)
        for o in [o for o in self.offsets if o < offset]:
            del self.offsets[o]
        if offset > self.spso:
            self.spso, self.speo = offset, max(self.speo, offset)
            self.advance()


members = st.sampled_from("ABC")
small = st.integers(0, 7)
acquisitions = st.tuples(
    st.just("acquire"), members, st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0, 0, 0, 2])), max_size=4),
    st.integers(1, 9), st.booleans(), st.sets(small, max_size=2),
)  # fmt: skip
types = st.lists(st.sampled_from([0, 1, 1, 2, 2, 3, 4]), min_size=5, max_size=5)
lists = st.lists(st.tuples(st.sampled_from([0, 0, 1, 3]), st.integers(0, 4), types), min_size=1, max_size=3)
acknowledgements = st.tuples(st.just("acknowledge"), members, small, lists, st.booleans(), st.booleans())
others = st.tuples(
    st.sampled_from(["expire", "release", "prepare", "stored", "stored", "lost", "cut", "dead"]), members, small
)
steps = st.lists(st.one_of(acquisitions, acquisitions, acknowledgements, acknowledgements, others, others), max_size=40)
Step = tuple[Any, ...]
settings = st.builds(ShareSettings, st.integers(2, 5), st.integers(3, 24), st.booleans())


@hypothesis_settings(max_examples=300)
@given(settings, steps)
def test_a_partition_equals_a_model_with_a_state_for_each_offset(settings: ShareSettings, steps: list[Step]) -> None:
    partition, model = SharePartition(ShareState(7, START), settings), Model(settings)
    now = 0
    for step in steps:
        now += 9
        _step(partition, model, step, now)
        _compare(partition, model)
    loaded = ShareState.decode(partition.state.encode())
    assert SharePartition(loaded, ShareSettings(99, 99, True)).state == loaded


def _step(partition: SharePartition, model: Model, step: Step, now: int) -> None:
    kind, *arguments = step
    match kind:
        case "acquire":
            _acquire(partition, model, now, *arguments)
        case "acknowledge":
            _acknowledge(partition, model, now, *arguments)
        case "expire":
            partition.expire(now)
            model.expire(now)
        case "release":
            partition.release_member(arguments[0])
            model.release(arguments[0])
        case "prepare":
            text = partition.prepare()
            assert (text.encode() if text else None) == model.prepare()
        case "stored" | "lost":
            if model.writing:
                partition.stored() if kind == "stored" else partition.lost()
                model.end_write(kind == "stored")
        case "cut":
            partition.advance_log_start(model.spso + arguments[1] - 5)
            model.cut(model.spso + arguments[1] - 5)
        case "dead":
            for a, b, _ in partition.dead_letters()[: arguments[1]]:
                partition.dead_lettered(a, b)
                model.dead_lettered(a, b)


def _acquire(
    partition: SharePartition,
    model: Model,
    now: int,
    member: str,
    read: list[tuple[int, int]],
    most: int,
    exact: bool,
    skips: set[int],
) -> None:
    wanted = partition.wanted()
    if wanted is None:
        return
    batches: list[tuple[int, int]] = []
    at = wanted.first
    for length, gap in read:
        batches.append(Span(at + gap, at + gap + length - 1))
        at += gap + length
    skipped = {wanted.first + each for each in skips}
    got = partition.acquire(
        member,
        wanted.first,
        batches,
        most,
        now + LOCK,
        exact=exact,
        skipped=[(each, each) for each in sorted(skipped)],
    )
    assert {o: count for a, b, count in got for o in range(a, b + 1)} == model.acquire(
        member, wanted.first, batches, most, now + LOCK, exact, skipped
    )
    assert all(a.last < b.first for a, b in pairwise(got))
    assert all(a.last + 1 < b.first or a.delivery_count != b.delivery_count for a, b in pairwise(got))
    assert not exact or sum(b - a + 1 for a, b, _ in got) <= most


def _acknowledge(
    partition: SharePartition,
    model: Model,
    now: int,
    member: str,
    start: int,
    spans: list[tuple[int, int, list[int]]],
    renewing: bool,
    one: bool,
) -> None:
    held = [run.first for run in partition.runs if run.held and run.member == member]
    at = held[start % len(held)] if held and start else model.spso + start - 2
    batches = []
    for gap, more, types in spans:
        at += gap
        kept = types if renewing else [1 if each == 4 else each for each in types]
        batches.append(AckBatch(at, at + more, bytes(kept[:1] if one else kept[: more + 1])))
        at += more + 1
    until = now + LOCK if renewing else None
    before = list(partition.runs)
    problem = partition.acknowledge(member, batches, now, renew_until=until)
    assert problem is model.acknowledge(member, batches, now, until)
    assert problem is None or list(partition.runs) == before


def _compare(partition: SharePartition, model: Model) -> None:
    assert (partition.spso, partition.speo) == (model.spso, model.speo)
    at = partition.spso
    runs = list(partition.runs)
    for run in runs:
        assert run.first == at
        at = run.last + 1
        for offset in range(run.first, run.last + 1):
            each = model.offsets[offset]
            assert (run.state, run.decision, run.sent) == (each.state, each.decision, each.sent)
            assert run.state is DONE or (run.count, run.member, run.until) == (each.count, each.member, each.until)
    assert at == partition.speo
    assert not any(after.continues(before) for before, after in pairwise(runs))
    assert partition.state.encode() == model.text()
    assert partition.write_in_flight == model.writing
    assert partition.deadline == min((each.until for each in model.offsets.values() if each.held), default=None)
    assert partition.has_changes == any(each.decision and not each.sent for each in model.offsets.values())
    assert partition.is_behind == model.is_behind


def _partition(text: str = "0 0", **settings: Any) -> SharePartition:
    return SharePartition(ShareState.decode(text), ShareSettings(**settings))


def _write(partition: SharePartition) -> str:
    state = partition.prepare()
    assert state is not None
    partition.stored()
    return state.encode()


def test_skipped_records_at_the_end_are_written_once() -> None:
    partition = _partition("0 5")
    assert partition.acquire("A", 5, [Span(5, 5)], 9, LOCK, skipped=[(5, 5)]) == []
    assert (partition.has_changes, partition.is_behind) == (False, True)
    assert partition.prepare() is not None
    assert not partition.is_behind
    partition.lost()
    assert _write(partition) == "0 6"
    assert partition.prepare() is None


def test_skipped_records_before_others_wait_for_the_next_write() -> None:
    partition = _partition("0 5")
    assert partition.acquire("A", 5, [Span(5, 5), Span(6, 6)], 9, LOCK, skipped=[(5, 5)]) == [(6, 6, 1)]
    assert (partition.spso, partition.is_behind, partition.prepare()) == (6, False, None)


def test_a_partition_without_an_offset_does_not_begin() -> None:
    with pytest.raises(ValueError, match="not begun"):
        SharePartition(ShareState(0, NOT_BEGUN), ShareSettings())


def test_whole_batches_or_the_exact_number_are_acquired() -> None:
    batches = [(0, 8), (9, 17)]
    assert _partition().acquire("A", 0, batches, 5, LOCK) == [(0, 8, 1)]
    assert _partition().acquire("A", 0, batches, 10, LOCK) == [(0, 17, 1)]
    assert _partition().acquire("A", 0, batches, 5, LOCK, exact=True) == [(0, 4, 1)]


def test_the_lowest_available_records_come_first_in_order() -> None:
    partition = _partition()
    partition.acquire("A", 0, [(0, 9)], 10, LOCK)
    assert partition.acknowledge("A", [AckBatch(4, 5, b"\2"), AckBatch(7, 7, b"\2")], 1) is None
    _write(partition)
    assert partition.wanted() == Span(4, 1999)
    assert partition.acquire("B", 4, [(0, 9), (10, 12)], 99, LOCK) == [(4, 5, 2), (7, 7, 2), (10, 12, 1)]


def test_the_window_counts_what_is_done_and_a_batch_may_exceed_it() -> None:
    partition = _partition(window=10)
    assert partition.acquire("A", 0, [(0, 7)], 99, LOCK) == [(0, 7, 1)]
    assert partition.acquire("A", 8, [(8, 15)], 99, LOCK) == [(8, 15, 1)]
    assert partition.wanted() is None
    assert partition.acknowledge("A", [AckBatch(1, 15, b"\1")], 1) is None
    _write(partition)
    assert partition.wanted() is None
    assert partition.acknowledge("A", [AckBatch(0, 0, b"\1")], 1) is None
    _write(partition)
    assert partition.wanted() == Span(16, 25)
    assert partition.acquire("A", 16, [(16, 99)], 999, LOCK) == [(16, 25, 1)]


@pytest.mark.parametrize("how", ["release", "expire"])
def test_the_last_delivery_comes_alone_and_then_never_again(how: str) -> None:
    partition = _partition()
    got = []
    for n in range(5):
        wanted = partition.wanted()
        assert wanted is not None
        got.append(partition.acquire("A", wanted.first, [(0, 7)], 8, n + 1))
        if how == "release":
            batches = [AckBatch(first, last, b"\2") for first, last, _ in got[-1]]
            assert partition.acknowledge("A", batches, n) is None
        else:
            partition.expire(n + 1)
        _write(partition)
    assert got == [[(0, 7, 1)], [(0, 7, 2)], [(0, 7, 3)], [(0, 3, 4)], [(0, 0, 5)]]
    assert partition.spso == 1


def test_what_does_not_exist_is_done_so_that_the_window_moves() -> None:
    partition = _partition(window=100)
    assert partition.acquire("A", 0, [(50, 59), (70, 79)], 99, LOCK, skipped=[(75, 75)]) == [
        (50, 59, 1),
        (70, 74, 1),
        (76, 79, 1),
    ]
    assert partition.spso == 50
    assert partition.acknowledge("A", [AckBatch(50, 59, b"\2")], 1) is None
    assert _write(partition) == "0 50 10a1,10d,5a1,1d,4a1"
    partition.gap(50, 59)
    assert (partition.spso, partition.speo) == (70, 80)
    partition.advance_log_start(78)
    assert (partition.spso, partition.speo) == (78, 80)
    assert partition.acknowledge("A", [AckBatch(70, 79, b"\1")], 1) is None
    assert _write(partition) == "0 80"
    partition.advance_log_start(500)
    assert (partition.spso, partition.speo, partition.wanted()) == (500, 500, Span(500, 599))


def test_a_read_beyond_the_end_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="beyond the end"):
        _partition().acquire("A", 1, [(1, 2)], 9, LOCK)


@pytest.mark.parametrize(
    ("batches", "problem"),
    [
        ([AckBatch(0, 0, b"\x09")], AckProblem.INVALID_REQUEST),
        ([AckBatch(0, 2, b"\1\1")], AckProblem.INVALID_REQUEST),
        ([AckBatch(0, 2, b"")], AckProblem.INVALID_REQUEST),
        ([AckBatch(1, 1, b"\1"), AckBatch(0, 0, b"\1")], AckProblem.INVALID_REQUEST),
        ([AckBatch(2, 1, b"\1")], AckProblem.INVALID_REQUEST),
        ([AckBatch(-1, 1, b"\1")], AckProblem.INVALID_REQUEST),
        ([AckBatch(0, 0, b"\1"), AckBatch(9, 20, b"\1")], AckProblem.INVALID_REQUEST),
        ([AckBatch(0, 0, b"\1"), AckBatch(1, 1, b"\4")], AckProblem.INVALID_REQUEST),
        ([AckBatch(8, 8, b"\1"), AckBatch(9, 9, b"\x09")], AckProblem.INVALID_REQUEST),
        ([AckBatch(0, 0, b"\1"), AckBatch(8, 8, b"\1")], AckProblem.INVALID_RECORD_STATE),
        ([AckBatch(0, 9, b"\1")], AckProblem.INVALID_RECORD_STATE),
    ],
)
def test_a_rejected_list_changes_nothing(batches: list[AckBatch], problem: AckProblem) -> None:
    partition = _partition()
    partition.acquire("A", 0, [(0, 7)], 8, LOCK)
    partition.acquire("B", 8, [(8, 9)], 8, LOCK)
    before = list(partition.runs)
    assert partition.acknowledge("A", batches, 1) is problem
    assert list(partition.runs) == before
    assert partition.prepare() is None


def test_an_acknowledgement_after_the_lock_or_twice_is_rejected() -> None:
    partition = _partition()
    partition.acquire("A", 0, [(0, 7)], 8, LOCK)
    one = [AckBatch(3, 3, b"\1")]
    assert partition.acknowledge("A", one, LOCK) is AckProblem.INVALID_RECORD_STATE
    assert partition.acknowledge("A", one, LOCK - 1) is None
    assert partition.acknowledge("A", one, LOCK - 1) is AckProblem.INVALID_RECORD_STATE


def test_a_renewal_restarts_the_lock_and_stores_nothing() -> None:
    partition = _partition()
    partition.acquire("A", 0, [(0, 7)], 8, LOCK)
    assert partition.acknowledge("A", [AckBatch(0, 7, b"\4")], 50, renew_until=150) is None
    assert (partition.deadline, partition.has_changes, partition.prepare()) == (150, False, None)


def test_decisions_count_when_they_are_stored_and_later_ones_leave_together() -> None:
    partition = _partition()
    partition.acquire("A", 0, [(0, 7)], 8, LOCK)
    assert partition.acknowledge("A", [AckBatch(0, 0, b"\1")], 1) is None
    first = partition.prepare()
    assert first is not None
    assert first.encode() == "0 1 7a1"
    assert partition.acknowledge("A", [AckBatch(1, 1, b"\1")], 1) is None
    partition.release_member("A")
    assert partition.prepare() is None
    assert (partition.spso, partition.wanted()) == (0, Span(8, 1999))
    partition.stored()
    assert (partition.spso, partition.wanted()) == (1, Span(8, 2000))
    assert _write(partition) == "0 2 6a1"
    assert partition.acquire("B", 2, [(0, 7)], 8, LOCK) == [(2, 7, 2)]


def test_after_a_lost_write_records_stay_acquired_and_the_next_write_contains_everything() -> None:
    partition = _partition()
    partition.acquire("A", 0, [(0, 3)], 8, LOCK)
    partition.acquire("B", 4, [(4, 7)], 8, 3 * LOCK)
    assert partition.acknowledge("A", [AckBatch(0, 3, b"\1")], 1) is None
    partition.release_member("B")
    assert partition.prepare() is not None
    partition.lost()
    assert (partition.spso, partition.has_changes) == (0, False)
    partition.expire(1)  # what the ended session held: at once
    assert _write(partition) == "0 0 8a1"
    assert partition.acquire("C", 0, [(0, 7)], 8, 3 * LOCK) == [(4, 7, 2)]
    partition.expire(LOCK)
    assert _write(partition) == "0 0 4a1,4a2"


def test_dead_letters_are_done_after_their_copies_exist() -> None:
    partition = _partition(dead_letters=True, delivery_limit=2)
    partition.acquire("A", 0, [(0, 3)], 8, LOCK)
    assert partition.acknowledge("A", [AckBatch(0, 2, b"\3\1\3")], 1) is None
    assert partition.dead_letters() == []
    assert _write(partition) == "0 0 1x1,1d,1x1,1a1"
    assert partition.dead_letters() == [(0, 0, 1), (2, 2, 1)]
    partition.expire(LOCK)
    _write(partition)
    partition.acquire("A", 3, [(0, 3)], 8, 2 * LOCK)
    partition.expire(2 * LOCK)
    text = _write(partition)
    partition = SharePartition(ShareState.decode(text), ShareSettings(dead_letters=True))
    assert partition.dead_letters() == [(0, 0, 1), (2, 2, 1), (3, 3, 2)]
    partition.dead_lettered(0, 2)
    assert partition.prepare() is not None
    partition.lost()
    assert partition.dead_letters() == [(3, 3, 2)]
    assert _write(partition) == "0 3 1x2"


def test_a_lower_limit_or_a_kill_during_the_last_delivery_archives() -> None:
    partition = _partition("0 0 2a4,1a5")
    assert _write(partition) == "0 0 2a4,1d"
    partition.configure(ShareSettings(delivery_limit=3))
    assert _write(partition) == "0 3"


@pytest.mark.parametrize("types", [b"\1", b"\1\2" * 2**19, b"\1" * (2**20 - 1) + b"\x09"])
def test_a_hostile_acknowledgement_costs_as_much_as_the_window(types: bytes) -> None:
    partition = _partition()
    partition.acquire("A", 0, [(0, 1999)], 2000, LOCK)
    last = 2**62 if len(types) == 1 else len(types) - 1
    start = time.process_time()
    assert partition.acknowledge("A", [AckBatch(0, last, types)], 1) is AckProblem.INVALID_REQUEST
    assert time.process_time() - start < 0.01
    partition.advance_log_start(last + 1)
    assert partition.acknowledge("A", [AckBatch(0, last, types[:1])], 1) is None


def test_a_batch_accepted_whole_leaves_nothing_and_alternating_types_a_run_each() -> None:
    partition = _partition()
    partition.acquire("A", 0, [(0, 499)], 500, LOCK)
    assert len(list(partition.runs)) == 1
    assert partition.acknowledge("A", [AckBatch(0, 499, b"\1")], 1) is None
    assert _write(partition) == "0 500"
    partition.acquire("A", 500, [(500, 2499)], 2000, LOCK)
    assert partition.acknowledge("A", [AckBatch(500, 2499, b"\2\1" * 1000)], 1) is None
    assert len(_write(partition)) <= 4 * 2000


def test_records_at_the_delivery_limit_are_counted_unless_the_list_is_rejected() -> None:
    partition = _partition("0 0 3a1", delivery_limit=2)
    partition.acquire("m", 0, [(0, 2)], 1, LOCK, exact=True)
    rejected = partition.acknowledge("m", [AckBatch(0, 0, b"\2"), AckBatch(1, 1, b"\1")], 0)
    assert rejected is AckProblem.INVALID_RECORD_STATE
    assert partition.take_given_up() == 0
    assert partition.acknowledge("m", [AckBatch(0, 0, b"\2")], 0) is None
    assert partition.take_given_up() == 1
    _write(partition)
    partition.acquire("m", 1, [(1, 2)], 1, LOCK, exact=True)
    partition.expire(LOCK)
    assert partition.take_given_up() == 1
    assert partition.take_given_up() == 0
