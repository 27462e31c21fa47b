"""The rule by which a log's owner decides where a batch goes."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.records.batch import SEQUENCES
from headrace.testing.clock import ManualClock
from headrace.topics import rejected_batches
from headrace.topics.append import MOST_OFFSET, OffsetAssigner
from headrace.topics.errors import BehindRefused, InvalidProducerEpoch, OffsetsExhausted, OutOfOrderSequence
from headrace.topics.model import Append, Appended
from headrace.topics.producer_state import ProducerStateEntry
from headrace.topics.rejected_batches import WAIT_MS, RejectedBatches


def batch(span: int = 1, producer: int = -1, sequence: int = -1, epoch: int = 0) -> Append:
    return Append(bytearray(b"any"), span, 5, producer, epoch if producer >= 0 else -1, sequence)


def changes_of(owner: OffsetAssigner) -> dict[int, ProducerStateEntry | None]:
    return owner.as_they_are(owner.take_changed())


def test_batches_go_one_behind_the_other() -> None:
    owner = OffsetAssigner(7)
    assert [owner.assign(batch(span), 1) for span in (3, 1, 2)] == [Appended(7), Appended(10), Appended(11)]
    assert owner.next_offset == 13
    assert not owner.unsaved


def test_a_repeated_batch_gets_its_first_offset_and_takes_none() -> None:
    owner = OffsetAssigner(0)
    owner.assign(batch(3, 7, 0), 1)
    owner.assign(batch(2), 1)
    assert owner.assign(batch(3, 7, 0), 1) == Appended(0, duplicate=True)
    assert owner.next_offset == 5


@pytest.mark.parametrize("refused", [batch(1, 7, 4), batch(1, 7, 0), batch(1, 7, 3, 1)])
def test_a_refusal_changes_nothing(refused: Append) -> None:
    owner = OffsetAssigner(0)
    owner.assign(batch(3, 7, 0), 1)
    changes_of(owner)
    with pytest.raises(OutOfOrderSequence):
        owner.assign(refused, 2)
    assert owner.next_offset == 3
    assert not owner.unsaved
    assert owner.producers[7].last_use_ms == 1


def test_an_old_producer_epoch_is_refused() -> None:
    owner = OffsetAssigner(0)
    owner.assign(batch(1, 7, 0, 2), 1)
    with pytest.raises(InvalidProducerEpoch):
        owner.assign(batch(1, 7, 1, 1), 1)


def test_offsets_end_below_two_to_the_53() -> None:
    owner = OffsetAssigner(MOST_OFFSET - 3)
    assert owner.assign(batch(2, 7, 0), 1) == Appended(MOST_OFFSET - 3)
    for append in (batch(2), batch(2, 7, 2), batch(2**31 - 1, 9, 0)):
        with pytest.raises(OffsetsExhausted, match="no room"):
            owner.assign(append, 1)
    assert 9 not in owner.producers
    assert owner.assign(batch(2, 7, 0), 1) == Appended(MOST_OFFSET - 3, duplicate=True)
    assert owner.assign(batch(1), 1) == Appended(MOST_OFFSET - 1)
    assert owner.next_offset == MOST_OFFSET


def test_what_is_known_of_producers_is_gone_on_with() -> None:
    known = ProducerStateEntry(2)
    known.take(2, 0, 3, 10, 1)
    owner = OffsetAssigner(20, {7: known})
    assert owner.assign(batch(3, 7, 0, 2), 1) == Appended(10, duplicate=True)
    assert owner.assign(batch(1, 7, 3, 2), 1) == Appended(20)


def test_changes_are_announced_once_and_as_they_were() -> None:
    owner = OffsetAssigner(0)
    owner.assign(batch(1, 7, 0), 1)
    owner.assign(batch(1, 8, 0), 1)
    changes = changes_of(owner)
    assert changes.keys() == {7, 8}
    owner.assign(batch(1, 7, 1), 2)
    told = changes[7]
    assert told is not None
    assert told.expected == 1
    assert changes_of(owner).keys() == {7}
    assert changes_of(owner) == {}


def test_producers_that_are_silent_are_forgotten() -> None:
    owner = OffsetAssigner(0)
    for producer, now in ((7, 10), (8, 20), (9, 30)):
        owner.assign(batch(1, producer, 0), now)
    changes_of(owner)
    owner.expire(20)
    assert changes_of(owner) == {7: None}
    # An unknown producer may begin at any sequence number.
    assert owner.assign(batch(1, 7, 5), 40) == Appended(3)
    owner.expire(100)
    owner.assign(batch(1, 8, 1), 100)
    changes = changes_of(owner)
    assert {each: known and known.expected for each, known in changes.items()} == {7: None, 8: 2, 9: None}


def test_changes_that_could_not_be_stored_are_announced_again_in_their_final_form() -> None:
    owner = OffsetAssigner(0)
    for producer in (7, 8, 9):
        owner.assign(batch(1, producer, 0), producer)
    owner.expire(8)
    changes = changes_of(owner)
    owner.assign(batch(1, 8, 1), 10)
    owner.expire(10)
    owner.keep_changed(changes)
    again = changes_of(owner)
    assert {each: known and known.expected for each, known in again.items()} == {7: None, 8: 2, 9: None}


def test_those_silent_for_longest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.topics.append.MOST_PRODUCERS", 20)
    owner = OffsetAssigner(0)
    for producer in range(20):
        owner.assign(batch(1, producer, 0), 1_000 - producer)
    changes_of(owner)
    owner.assign(batch(1, 20, 0), 1)
    assert owner.producers.keys() == {*range(18), 20}
    changes = changes_of(owner)
    assert {each for each, known in changes.items() if known is None} == {18, 19}
    # One that is known needs no room.
    owner.assign(batch(1, 21, 0), 2_000)
    for _ in range(3):
        owner.assign(batch(1, 5, owner.producers[5].expected), 1)
    assert len(owner.producers) == 20


class Snapshots(RuleBasedStateMachine):
    """Whatever is stored of the changes, in whatever turns, is in the end what the owner knows."""

    def __init__(self) -> None:
        super().__init__()
        self.owner = OffsetAssigner(0)
        self.stored: dict[int, ProducerStateEntry] = {}
        self.now = 0

    @rule(producer=st.integers(0, 4), skip=st.booleans())
    def append(self, producer: int, skip: bool) -> None:
        self.now += 1
        known = self.owner.producers.get(producer)
        sequence = 0 if known is None else known.expected + skip
        try:
            self.owner.assign(batch(1, producer, sequence), self.now)
        except OutOfOrderSequence:
            assert skip

    @rule(age=st.integers(0, 5))
    def expire(self, age: int) -> None:
        self.owner.expire(self.now - age)

    @rule(fails=st.booleans(), meanwhile=st.sampled_from(["nothing", "append", "expire"]))
    def save(self, fails: bool, meanwhile: str) -> None:
        changes = changes_of(self.owner)
        what: dict[str, Callable[[], None]] = {
            "nothing": lambda: None, "append": lambda: self.append(0, False), "expire": lambda: self.expire(1),
        }  # fmt: skip
        what[meanwhile]()
        if fails:
            self.owner.keep_changed(changes)
            return
        for producer, known in changes.items():
            if known is None:
                self.stored.pop(producer, None)
            else:
                self.stored[producer] = known

    @invariant()
    def nothing_is_missing_that_is_not_to_come(self) -> None:
        if not self.owner.unsaved:
            assert self.stored == self.owner.producers


TestSnapshots = Snapshots.TestCase


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 8), st.integers(1, 2)), max_size=40))
def test_against_what_the_log_says(sends: list[tuple[int, int, int, int]]) -> None:
    """Each batch of a producer is there once, and an owner that reads the log decides as one that has written it."""
    owner = OffsetAssigner(0)
    log: list[tuple[Append, int]] = []
    for producer, epoch, sequence, span in sends:
        reader = OffsetAssigner(owner.next_offset, reread(log))
        append = batch(span, producer, sequence, epoch)
        answers = [outcome(one, append) for one in (owner, reader)]
        assert answers[0] == answers[1]
        if isinstance(answers[0], Appended) and not answers[0].duplicate:
            log.append((append, answers[0].base_offset))
    present = [(each.producer_id, each.producer_epoch, each.base_sequence) for each, _ in log]
    firsts = [each for each in present if each[2] != 0]
    assert len(set(firsts)) == len(firsts)
    assert [base for _, base in log] == [sum(each.span for each, _ in log[:assign]) for assign in range(len(log))]


def reread(log: list[tuple[Append, int]]) -> dict[int, ProducerStateEntry]:
    found: dict[int, ProducerStateEntry] = {}
    for append, base_offset in log:
        known = found.setdefault(append.producer_id, ProducerStateEntry(append.producer_epoch))
        known.take(append.producer_epoch, append.base_sequence, append.span, base_offset, 1)
    return found


def outcome(owner: OffsetAssigner, append: Append) -> Appended | type[Exception]:
    try:
        return owner.assign(append, 1)
    except (OutOfOrderSequence, InvalidProducerEpoch) as error:
        return type(error)


def test_the_results_of_a_recovery_are_among_the_changes() -> None:
    """Else the next snapshot would say that everything up to its offset is stored, and it is not."""
    known = {7: ProducerStateEntry(0), 8: ProducerStateEntry(0)}
    owner = OffsetAssigner(5, known, unsaved={8, 9})
    assert owner.unsaved
    assert changes_of(owner) == {8: ProducerStateEntry(0), 9: None}


# A producer that is not known begins anywhere, but not behind a batch of its own that was refused


def test_behind_a_refusal_an_unknown_producer_goes_on_where_it_was_refused() -> None:
    """It has five batches in flight: later ones must not be appended before the first."""
    first = OffsetAssigner(0)
    for sequence in (3, 5, 6):
        first.refused.refuse(batch(1, 7, sequence))
    owner = OffsetAssigner(0, {}, (), first.refused)
    for sequence in (5, 6, 4, 0):
        with pytest.raises(OutOfOrderSequence, match="expected 3"):
            owner.assign(batch(1, 7, sequence), 1)
    assert owner.assign(batch(2, 7, 3), 1) == Appended(0)
    assert owner.assign(batch(1, 7, 5), 1) == Appended(2)
    assert owner.refused.first == {}


def test_a_refusal_is_over_with_a_new_epoch_or_where_the_log_knows_the_producer() -> None:
    first = OffsetAssigner(0)
    first.refused.refuse(batch(1, 7, 3))
    owner = OffsetAssigner(0, {}, (), first.refused)
    assert owner.assign(batch(1, 7, 0, epoch=1), 1) == Appended(0)
    known = ProducerStateEntry(0)
    known.take(0, 3, 1, 0, 1)
    owner = OffsetAssigner(1, {7: known}, (), first.refused)
    assert owner.assign(batch(1, 7, 4), 1) == Appended(1)
    assert owner.refused.first == {}


def test_batches_without_a_producer_are_never_held_up() -> None:
    first = OffsetAssigner(0)
    first.refused.refuse(batch())
    assert OffsetAssigner(0, {}, (), first.refused).assign(batch(), 1) == Appended(0)


# What a producer had sent behind a batch that was refused waits for that one to come again


def sent_up_to(last: int, epoch: int = 0) -> dict[int, ProducerStateEntry]:
    known = ProducerStateEntry(epoch)
    known.take(epoch, last, 1, 0, 1)
    return {7: known}


def refusal(owner: OffsetAssigner, append: Append) -> type[OutOfOrderSequence]:
    with pytest.raises(OutOfOrderSequence) as caught:
        owner.assign(append, 1)
    return caught.type


@pytest.mark.parametrize("stored", [2, 3, 4])
def test_after_a_rejection_a_known_producer_must_retry(stored: int) -> None:
    """Of what was refused some may have been stored: a lost answer is one, too."""
    first = OffsetAssigner(0, sent_up_to(2))
    for sequence in (3, 4, 5):
        first.refused.refuse(batch(1, 7, sequence))
    owner = OffsetAssigner(10, sent_up_to(stored), (), first.refused)
    assert refusal(owner, batch(1, 7, 6)) is BehindRefused
    came = [owner.assign(batch(1, 7, sequence), 1) for sequence in range(stored + 1, 7)]
    assert came == [Appended(10 + assign) for assign in range(6 - stored)]
    # All is in order again: a gap is one.
    assert refusal(owner, batch(1, 7, 9)) is OutOfOrderSequence


def test_lost_acknowledged_records_do_not_return() -> None:
    owner = OffsetAssigner(0, sent_up_to(2))
    owner.refused.refuse(batch(1, 7, 9))
    assert refusal(owner, batch(1, 7, 10)) is OutOfOrderSequence


def test_a_batch_from_before_the_refusal_is_not_behind_it() -> None:
    owner = OffsetAssigner(0, sent_up_to(12))
    owner.refused.refuse(batch(1, 7, 12))
    assert refusal(owner, batch(1, 7, 3)) is OutOfOrderSequence


def test_a_new_epoch_begins_with_its_first_batch_even_if_that_was_refused() -> None:
    owner = OffsetAssigner(0, sent_up_to(4))
    owner.refused.refuse(batch(1, 7, 5))
    owner.refused.refuse(batch(1, 7, 0, epoch=1))
    assert refusal(owner, batch(1, 7, 1, epoch=1)) is BehindRefused
    assert owner.assign(batch(1, 7, 0, epoch=1), 1) == Appended(0)
    assert owner.assign(batch(1, 7, 1, epoch=1), 1) == Appended(1)


def test_a_rejection_holds_where_sequences_restart() -> None:
    owner = OffsetAssigner(0, sent_up_to(SEQUENCES - 2))
    owner.refused.refuse(batch(1, 7, SEQUENCES - 1))
    assert refusal(owner, batch(1, 7, 0)) is BehindRefused


def test_earlier_batches_of_an_unknown_producer_do_not_follow_its_refusal() -> None:
    owner = OffsetAssigner(0)
    owner.refused.refuse(batch(1, 7, 3))
    assert [refusal(owner, batch(1, 7, sequence)) for sequence in (5, 2)] == [BehindRefused, OutOfOrderSequence]


def test_a_refusal_is_over_where_the_batch_turns_out_to_have_been_stored() -> None:
    first = OffsetAssigner(0, sent_up_to(2))
    first.refused.refuse(batch(1, 7, 3))
    owner = OffsetAssigner(10, sent_up_to(3), (), first.refused)
    assert owner.assign(batch(1, 7, 3), 1) == Appended(0, duplicate=True)
    owner.expire(2)
    assert owner.producers == {}
    assert owner.assign(batch(1, 7, 4), 3) == Appended(10)


def test_a_producer_that_makes_room_goes_on_behind_what_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.topics.append.MOST_PRODUCERS", 10)
    owner = OffsetAssigner(10, {**sent_up_to(3), **{each: ProducerStateEntry(0, (), 9) for each in range(20, 29)}})
    owner.refused.refuse(batch(1, 7, 3))
    owner.assign(batch(1, 7, 3), 1)
    owner.assign(batch(1, 30, 0), 9)
    assert 7 not in owner.producers
    # It has sent two, of which the second comes first: the first was answered that it is to be sent again.
    assert refusal(owner, batch(1, 7, 5)) is BehindRefused
    assert owner.assign(batch(1, 7, 4), 9) == Appended(11)


def test_a_refused_batch_that_its_producer_has_given_up_is_missing_after_a_while() -> None:
    """The Java client does after `delivery.timeout.ms`, and retries the later batches again and again."""
    clock = ManualClock()
    owner = OffsetAssigner(0, sent_up_to(2), (), RejectedBatches(clock.ticks_ms))

    def refused_after(ms: int) -> type[OutOfOrderSequence]:
        clock.advance(ms)
        return refusal(owner, batch(1, 7, 4))

    owner.refused.refuse(batch(1, 7, 3))
    assert [refused_after(ms) for ms in (1, WAIT_MS - 1)] == [BehindRefused] * 2
    owner.refused.refuse(batch(1, 7, 3))  # it is sent still
    assert [refused_after(ms) for ms in (5, WAIT_MS - 1)] == [BehindRefused] * 2
    assert refused_after(1) is OutOfOrderSequence
    assert owner.assign(batch(1, 7, 0, epoch=1), 1) == Appended(0)


def many_refused(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, known: dict[int, ProducerStateEntry]
) -> OffsetAssigner:
    """Where there is room for two, 8 is the one that is forgotten."""
    monkeypatch.setattr(rejected_batches, "MOST_REFUSED", 2)
    owner = OffsetAssigner(0, known, (), RejectedBatches(clock.ticks_ms))
    for producer, sequence in ((7, 3), (8, 3), (7, 2), (9, 3)):
        owner.refused.refuse(batch(1, producer, sequence))
    assert owner.refused.first.keys() == {7, 9}
    return owner


def test_with_too_many_rejections_no_producer_begins_after_a_forgotten_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    owner = many_refused(clock, monkeypatch, {})
    assert [refusal(owner, batch(1, producer, 4)) for producer in (7, 9, 8)] == [BehindRefused] * 3
    # Its second batch comes before its first one, which comes again.
    clock.advance(WAIT_MS - 1)
    assert refusal(owner, batch(1, 8, 4)) is BehindRefused
    # The first batch of a producer follows none.
    assert owner.assign(batch(1, 10, 0), 1) == Appended(0)
    assert owner.assign(batch(1, 10, 1), 1) == Appended(1)
    # A producer that has given it up continues.
    clock.advance(1)
    assert owner.assign(batch(1, 8, 4), 1) == Appended(2)


def test_where_too_many_were_refused_a_known_producer_waits_for_what_it_sent_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = ProducerStateEntry(0)
    known.take(0, 2, 1, 0, 1)
    clock = ManualClock()
    owner = many_refused(clock, monkeypatch, {8: known})
    assert refusal(owner, batch(1, 8, 4)) is BehindRefused
    # What it had sent long before is in order no more, whatever was forgotten.
    assert refusal(owner, batch(1, 8, 0)) is OutOfOrderSequence
    assert [owner.assign(batch(1, 8, sequence), 1) for sequence in (3, 4)] == [Appended(0), Appended(1)]
    assert refusal(owner, batch(1, 8, 7)) is BehindRefused
    clock.advance(WAIT_MS)
    assert refusal(owner, batch(1, 8, 7)) is OutOfOrderSequence


def test_what_was_refused_is_forgotten_when_its_producer_was_silent_for_long_known_or_not() -> None:
    clock = ManualClock()
    owner = OffsetAssigner(0, sent_up_to(2), (), RejectedBatches(clock.ticks_ms))
    for producer in (7, 8, 9):
        owner.refused.refuse(batch(1, producer, 3))
    clock.advance(10)
    owner.refused.refuse(batch(1, 8, 4))
    owner.refused.stored(batch(1, 9, 3), repeated=True)
    owner.refused.expire(10)
    assert owner.refused.first.keys() == {7, 8, 9}
    owner.refused.expire(9)
    assert owner.refused.first == {8: (0, 3), 9: (0, 4)}
    clock.advance(10)
    owner.refused.expire(9)
    assert owner.refused.first == {}


def test_a_producer_that_was_silent_for_long_begins_with_what_was_just_refused() -> None:
    """Its second batch is in flight, and the producer is unknown by now."""
    owner = OffsetAssigner(10, sent_up_to(2))
    owner.refused.refuse(batch(1, 7, 3))
    assert owner.expire(2) == 1
    assert refusal(owner, batch(1, 7, 4)) is BehindRefused
    assert [owner.assign(batch(1, 7, sequence), 3) for sequence in (3, 4)] == [Appended(10), Appended(11)]


def test_behind_what_was_stored_others_may_still_be_missing() -> None:
    first = OffsetAssigner(0, sent_up_to(2))
    for sequence in (3, 4, 5):
        first.refused.refuse(batch(1, 7, sequence))
    owner = OffsetAssigner(10, sent_up_to(3), (), first.refused)
    owner.assign(batch(1, 7, 3), 1)
    assert refusal(owner, batch(1, 7, 5)) is BehindRefused
    assert [owner.assign(batch(1, 7, sequence), 1) for sequence in (4, 5)] == [Appended(10), Appended(11)]


def test_what_comes_again_from_before_a_refusal_or_in_another_epoch_does_not_end_it() -> None:
    known = ProducerStateEntry(0)
    for sequence in (1, 2):
        known.take(0, sequence, 1, sequence, 1)
    owner = OffsetAssigner(10, {7: known})
    for refused in (batch(1, 7, 3), batch(1, 7, 0, epoch=1)):
        owner.refused.refuse(refused)
        marks = dict(owner.refused.first)
        assert [owner.assign(batch(1, 7, sequence), 1).duplicate for sequence in (1, 2)] == [True, True]
        assert owner.refused.first == marks
    # Of an epoch that is over.
    known.take(2, 0, 1, 9, 1)
    assert owner.assign(batch(1, 7, 0, epoch=2), 1).duplicate
    assert owner.refused.first == {}
