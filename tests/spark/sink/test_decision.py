"""Decisions of the exactly-once sink: their stored form, and their steps with a crash or a timeout at any of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.errors import BatchLost, DecisionError
from headrace.spark.sink import decision as rules
from headrace.spark.sink.decision import CommitAll, Decision, Outcome, Participant, Steps, Store

QUERY = UUID(int=7)
PARTICIPANTS = st.builds(
    Participant,
    suffix=st.binary(min_size=8, max_size=8),
    producer_id=st.integers(0, 2**62),
    producer_epoch=st.integers(0, 32_767),
    version=st.sampled_from([1, 2]),
    rows=st.integers(0, 2**62 - 1),
)
DECISIONS = st.builds(
    Decision,
    done=st.integers(0, 2**62),
    query=st.uuids(),
    participants=st.lists(PARTICIPANTS, max_size=5).map(tuple),
)


def stored(decision: Decision, partitions: int = 9) -> dict[int, tuple[int, str]]:
    return {number: (decision.done, text) for number, text in enumerate(rules.encode(decision, partitions))}


def many(count: int) -> tuple[Participant, ...]:
    return tuple(Participant(number.to_bytes(8), number, 1, 2, 100) for number in range(count))


@given(DECISIONS)
def test_a_decision_is_read_as_it_was_stored(decision: Decision) -> None:
    assert rules.decode(stored(decision), "sink") == decision


def test_a_long_decision_takes_several_partitions() -> None:
    decision = Decision(5, QUERY, many(500))
    found = stored(decision)
    assert len(found) == 3
    assert all(len(text) <= rules.METADATA_CHARACTERS for _, text in found.values())
    assert rules.decode(found, "sink") == decision
    # The parts of the earlier decision stay behind a shorter one.
    shorter = Decision(6, QUERY, many(1))
    assert rules.decode(found | stored(shorter), "sink") == shorter
    with pytest.raises(DecisionError, match=r"500 transactions.*takes a topic of 3 partitions, and this one has 2"):
        rules.encode(decision, 2)


def test_no_decision_and_damaged_ones() -> None:
    assert rules.decode({}, "sink") is None
    found = stored(Decision(5, QUERY, many(500)))
    other = stored(Decision(6, QUERY, many(500)[::-1]))
    text = found[0][1]
    for damaged in (
        {0: found[0], 1: found[1]},
        found | {1: other[1]},
        found | {0: (6, text)},
        found | {0: (5, text[:-4])},
        found | {0: (5, text[:-4] + "////")},
        found | {0: found[1]},
    ):
        with pytest.raises(DecisionError, match="hold a part of a decision only"):
            rules.decode(damaged, "sink")
    for others in ({0: (5, "")}, {1: found[1]}, {0: (5, "metadata of a consumer")}):
        with pytest.raises(DecisionError, match="no sink's"):
            rules.decode(others, "sink")


def test_ids_of_a_sink() -> None:
    name = rules.transactional_id("a/b", b"12345678")
    assert name == "a/b/3132333435363738"
    assert rules.is_of_sink(name, "a/b")
    for other in ("a", "a/b/3132333435363738", "A/b", ""):
        assert not rules.is_of_sink(name, other)
    assert not rules.is_of_sink("a/b", "a/b")


@dataclass
class Broker:
    """Transactions by participant, and the stored decision."""

    decision: Decision | None = None
    ends: dict[Participant, Outcome] = field(default_factory=dict)

    def take(self, step: Store | CommitAll, stop_after: int | None = None) -> Sequence[Outcome]:
        """Take a step; killed after some of its transactions."""
        if isinstance(step, Store):
            self.decision = step.decision
            return ()
        return [self.ends.setdefault(one, Outcome.COMMITTED) for one in step.participants[:stop_after]]

    def time_out(self, participants: Sequence[Participant]) -> None:
        for one in participants:
            self.ends.setdefault(one, Outcome.ABORTED)


def drive(broker: Broker, steps: Steps[Any], stop: int, within: int) -> Any:
    """Take the steps; stop after `stop` of them, and after `within` transactions of the last one."""
    outcomes: Sequence[Outcome] | None = None
    try:
        for number in range(stop):
            step = steps.send(outcomes)  # type: ignore[arg-type]  # the first one takes None
            outcomes = broker.take(step, within if number == stop - 1 else None)
    except StopIteration as end:
        return end.value
    steps.close()
    return None


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.sets(st.integers(0, 3))), max_size=4),
    st.sets(st.integers(0, 3)),
    st.booleans(),
)
def test_a_batch_is_written_once_or_its_loss_is_reported(
    count: int, crashes: list[tuple[int, int, set[int]]], late: set[int], listed: bool
) -> None:
    broker = Broker(Decision(3, QUERY))
    participants = many(count)
    broker.time_out([participants[at] for at in late if at < count])
    lost = False
    for attempt, (stop, within, timed_out) in enumerate([*crashes, (9, 9, set[int]())]):
        decided = broker.decision
        assert decided is not None
        try:
            if attempt == 0:
                ongoing = [one for one in participants if one not in broker.ends]
                drive(broker, rules.commit(3, QUERY, participants, {}, ongoing if listed else None), stop, within)
            elif decided.participants:
                drive(broker, rules.finish(decided), stop, within)
        except BatchLost:
            lost = True
        broker.time_out([participants[at] for at in timed_out if at < count])
    ends = [broker.ends.get(one) for one in participants]
    assert broker.decision is not None
    if broker.decision.participants:
        # Only a loss in part stays, and is reported each time.
        assert lost
        # What has timed out before the decision is found.
        assert not listed or not late & set(range(count))
        assert set(ends) == {Outcome.COMMITTED, Outcome.ABORTED}
        with pytest.raises(BatchLost, match="is written in part"):
            drive(broker, rules.finish(broker.decision), 9, 9)
    elif broker.decision.done == 4:
        assert set(ends) == {Outcome.COMMITTED}
    else:
        assert broker.decision.done == 3
        assert Outcome.COMMITTED not in ends


def test_a_loss_names_rows_and_partitions() -> None:
    one, other = many(2)
    steps = rules.commit(3, QUERY, [one, other], {one: "t-0", other: "t-1, t-2"})
    assert next(steps) == Store(Decision(4, QUERY, (one, other)))
    assert steps.send(()) == CommitAll((one, other))
    with pytest.raises(
        BatchLost, match=r"batch 3.*1 of its 2.*100 rows for t-1, t-2 \(producer id 1, epoch 1: aborted\)"
    ):
        steps.send([Outcome.COMMITTED, Outcome.ABORTED])


def test_forgotten_transactions_are_no_reason_to_write_again() -> None:
    one, other = many(2)
    steps = rules.finish(Decision(4, QUERY, (one, other)))
    next(steps)
    with pytest.raises(BatchLost, match=r"2 of its 2 transactions were not committed.*unknown"):
        steps.send([Outcome.UNKNOWN, Outcome.UNKNOWN])
