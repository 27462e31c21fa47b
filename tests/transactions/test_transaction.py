from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.harness.transactions import P0, P1, TOPIC, TransactionContext, stored_at

from headrace.machines.effects import Persist, Reply, SetTimer
from headrace.transactions.effects import EndParticipants, EndResult, InitResult
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import (
    Add,
    End,
    Ended,
    Event,
    Init,
    ProducerIdAllocated,
    TimerFired,
    TimerKind,
    TopicGone,
)
from headrace.transactions.model import NEW, GroupId, TransactionSettings, TransactionState
from headrace.transactions.rules import VALID_PREVIOUS_STATES

E = TransactionError
S = TransactionState
DAY_MS = 86_400_000


@pytest.fixture
def ctx() -> TransactionContext:
    context = TransactionContext()
    assert context.init() == InitResult(producer_id=1_000, epoch=0)
    return context


def began(ctx: TransactionContext, *, version: int = 1) -> TransactionContext:
    assert ctx.add(P0, P1, GroupId("g"), version=version).error is None
    return ctx


def test_a_transaction_takes_two_writes_before_its_response(ctx: TransactionContext) -> None:
    ctx.writes.clear()
    began(ctx)
    ticket = ctx.end()
    assert ticket is None, "it waits for the participants"
    assert [each.state for each in ctx.writes] == [S.ONGOING, S.PREPARE_COMMIT]
    ctx.ended()

    assert ctx.state is S.COMPLETE_COMMIT
    assert EndResult(producer_id=1_000, epoch=0) in ctx.replies.values()
    assert ctx.storage.stored.state is S.PREPARE_COMMIT
    ctx.add()
    assert [each.state for each in ctx.writes] == [S.ONGOING, S.PREPARE_COMMIT, S.ONGOING]


def test_markers_follow_the_durable_decision(ctx: TransactionContext) -> None:
    began(ctx, version=2)
    ctx.end(commit=True, version=2)

    kinds = [type(effect) for effect in ctx.effects]
    assert kinds.index(Persist) < kinds.index(EndParticipants)
    assert ctx.calls == [
        EndParticipants(
            producer_id=1_000, epoch=1, commit=True, number=1, copies=1, version=2,
            participants=(P0, P1, GroupId("g")),
        )
    ]  # fmt: skip
    assert ctx.storage.stored.producer_epoch == 1


def test_the_number_of_copies_is_the_largest_of_a_transaction(ctx: TransactionContext) -> None:
    ctx.add(P0, copies=3)
    ctx.add(P1, copies=2)
    ctx.end()
    assert ctx.calls[0].copies == 3
    ctx.ended()
    ctx.add(P0, copies=1)
    assert ctx.current.copies == 1


def test_end_responds_after_250_ms_at_the_latest(ctx: TransactionContext) -> None:
    began(ctx, version=2)
    ctx.end(version=2)
    ctx.sleep(249)
    assert len(ctx.replies) == 2
    ctx.sleep(1)
    assert list(ctx.replies.values())[-1] == EndResult(producer_id=1_000, epoch=1)
    assert ctx.add().error is E.CONCURRENT_TRANSACTIONS
    ctx.ended()
    assert ctx.add().number == 2


def test_participants_that_have_not_ended_are_called_again(ctx: TransactionContext) -> None:
    began(ctx)
    ctx.end()
    ctx.ended(ctx.calls.pop(), P1)
    ctx.sleep(50)
    assert ctx.calls[0].participants == (P0, GroupId("g"))
    ctx.post(Ended(1, ()))
    ctx.sleep(99)
    assert len(ctx.calls) == 1
    ctx.sleep(1)
    ctx.ended(ctx.calls.pop())
    assert ctx.state is S.COMPLETE_COMMIT
    ctx.sleep(4_000)
    assert len(ctx.calls) == 1


def test_a_late_response_about_an_earlier_transaction_does_not_count(ctx: TransactionContext) -> None:
    for _ in range(2):
        ctx.add(P0)
        ctx.end()
        call = ctx.calls[0]
        if call.number == 1:
            ctx.ended()
    ctx.post(Ended(1, (P0,)))
    assert ctx.state is S.PREPARE_COMMIT


def test_a_deleted_topic_needs_no_marker(ctx: TransactionContext) -> None:
    ctx.add(P0, P1)
    ctx.end()
    ctx.post(TopicGone(TOPIC))
    assert ctx.state is S.COMPLETE_COMMIT
    ctx.add(P0, GroupId("g"))
    ctx.post(TopicGone(TOPIC))
    ctx.end()
    assert ctx.calls[-1].participants == (GroupId("g"),)


def test_a_transaction_whose_topics_are_gone_completes_at_once(ctx: TransactionContext) -> None:
    ctx.add(P0)
    ctx.post(TopicGone(TOPIC))
    assert ctx.end() == EndResult(producer_id=1_000, epoch=0)
    assert ctx.calls == []


def test_what_was_added_is_not_written_again(ctx: TransactionContext) -> None:
    began(ctx)
    writes = len(ctx.writes)
    assert ctx.add(P1).number == 1
    assert len(ctx.writes) == writes


def test_only_what_was_added_is_verified(ctx: TransactionContext) -> None:
    ctx.add(P0)
    assert ctx.verify(P0).missing == frozenset()
    assert ctx.verify(P0, P1, GroupId("g")).missing == {P1, GroupId("g")}
    assert ctx.verify(P0, epoch=1).error is E.PRODUCER_FENCED
    ctx.end()
    assert ctx.verify(P0).error is E.CONCURRENT_TRANSACTIONS
    ctx.ended()
    assert ctx.verify(P0).missing == {P0}


def test_a_lookup_finds_a_transaction_until_its_participant_has_ended(ctx: TransactionContext) -> None:
    began(ctx, version=2)
    assert ctx.lookup(P0)
    ctx.end(version=2)
    assert ctx.lookup(P0), "its end has another epoch"
    ctx.ended(ctx.calls[0], P0)
    assert not ctx.lookup(P0)
    assert ctx.lookup(P1)
    ctx.ended(ctx.calls[0])
    assert not ctx.lookup(P1)


def test_a_limit_of_participants() -> None:
    ctx = TransactionContext(stored_at(S.EMPTY), TransactionSettings(max_participants=2))
    assert ctx.add(P0, P1).error is None
    assert ctx.add(GroupId("g")).error is E.POLICY_VIOLATION
    assert ctx.add(P1).error is None


@pytest.mark.parametrize(("version", "epoch", "last"), [(1, 1, -1), (2, 1, 0)])
def test_a_timeout_fences_and_aborts_with_one_bump(
    ctx: TransactionContext, version: int, epoch: int, last: int
) -> None:
    began(ctx, version=version)
    ctx.sleep(59_999)
    assert ctx.state is S.ONGOING
    ctx.sleep(1)
    assert (ctx.state, ctx.current.producer_epoch, ctx.current.last_epoch) == (S.PREPARE_ABORT, epoch, last)
    assert not ctx.calls[0].commit
    ctx.ended()
    assert ctx.end(commit=True, version=version, epoch=0).error is E.PRODUCER_FENCED


def test_a_timeout_that_meets_the_end_changes_nothing(ctx: TransactionContext) -> None:
    began(ctx)
    ctx.ticks_ms = ctx.timers[TimerKind.TRANSACTION]
    ctx.end()
    ctx.post(TimerFired(TimerKind.TRANSACTION))
    assert ctx.state is S.PREPARE_COMMIT


def test_time_is_granted_again_after_a_restart(ctx: TransactionContext) -> None:
    began(ctx)
    ctx.sleep(50_000)
    ctx.restart()
    ctx.sleep(59_999)
    assert ctx.state.value == "Ongoing"
    ctx.sleep(1)
    assert ctx.state.value == "PrepareAbort"


@pytest.mark.parametrize(("version", "after"), [(1, 2), (2, 2)])
def test_a_new_producer_aborts_what_its_predecessor_left(ctx: TransactionContext, version: int, after: int) -> None:
    began(ctx, version=version)
    assert ctx.init().error is E.CONCURRENT_TRANSACTIONS
    assert ctx.init().error is E.CONCURRENT_TRANSACTIONS
    assert ctx.calls[0].epoch == 1
    ctx.ended()
    assert ctx.init() == InitResult(producer_id=1_000, epoch=after)
    assert ctx.add(epoch=0).error is E.PRODUCER_FENCED
    assert ctx.end(commit=False, version=version, epoch=0).error is E.PRODUCER_FENCED


def test_a_producer_of_the_second_protocol_continues_after_a_timeout(ctx: TransactionContext) -> None:
    began(ctx, version=2)
    ctx.sleep(60_000)
    assert ctx.end(commit=False, version=2, epoch=0).error is E.CONCURRENT_TRANSACTIONS
    ctx.ended()
    assert ctx.end(commit=False, version=2, epoch=0) == EndResult(producer_id=1_000, epoch=1)


def test_a_producer_that_continues_gets_the_same_epoch_however_often_it_asks(ctx: TransactionContext) -> None:
    assert [ctx.init(1_000, 0).epoch for _ in range(3)] == [1, 1, 1]
    assert ctx.init(1_000, 1).epoch == 2
    assert ctx.init(1_000, 0).error is E.PRODUCER_FENCED


def test_a_producer_that_continues_may_abort_its_own_transaction(ctx: TransactionContext) -> None:
    began(ctx)
    assert ctx.init(1_000, 0).error is E.CONCURRENT_TRANSACTIONS
    ctx.ended()
    assert ctx.init(1_000, 0) == InitResult(producer_id=1_000, epoch=1)


def test_a_repeated_end_of_the_second_protocol_returns_the_next_epoch(ctx: TransactionContext) -> None:
    began(ctx, version=2)
    ctx.end(version=2, epoch=0)
    assert ctx.end(version=2, epoch=0).error is E.CONCURRENT_TRANSACTIONS
    ctx.ended()
    assert ctx.end(version=2, epoch=0) == EndResult(producer_id=1_000, epoch=1)
    ctx.add(version=2, epoch=1)
    assert ctx.end(version=2, epoch=0).error is E.PRODUCER_FENCED


def test_an_empty_abort_bumps_and_is_repeated(ctx: TransactionContext) -> None:
    assert ctx.end(commit=False, version=2, epoch=0) == EndResult(producer_id=1_000, epoch=1)
    assert ctx.end(commit=False, version=2, epoch=0) == EndResult(producer_id=1_000, epoch=1)
    assert ctx.storage.stored.state is S.COMPLETE_ABORT
    assert ctx.calls == []
    assert ctx.end(commit=True, version=2, epoch=1).error is E.INVALID_TXN_STATE
    assert ctx.end(commit=False, version=1, epoch=1).error is None
    assert ctx.end(commit=True, version=1, epoch=1).error is E.INVALID_TXN_STATE


EDGES = [32_765, 32_766]


@pytest.mark.parametrize(("epoch", "version"), list(product(EDGES, [1, 2])))
def test_every_path_over_the_edge_of_epochs_ends_with_a_new_producer(epoch: int, version: int) -> None:
    for path in ("init", "continue", "fence", "timeout", "end", "empty abort"):
        ctx = TransactionContext(stored_at(S.EMPTY, epoch, version))
        seen = []
        for _ in range(4):
            current = ctx.current
            pid, now = current.producer_id, current.producer_epoch
            match path:
                case "init":
                    result = ctx.init()
                case "continue":
                    result = ctx.init(pid, now)
                    assert ctx.init(pid, now) == result
                case "fence":
                    assert ctx.add(version=version).error is None
                    ctx.init()
                    ctx.ended()
                    result = ctx.init()
                case "timeout":
                    assert ctx.add(version=version).error is None
                    ctx.sleep(60_000)
                    ctx.ended()
                    result = ctx.init()
                case _:
                    if path == "end":
                        assert ctx.add(version=2).error is None
                    ctx.end(commit=False, version=2)
                    if ctx.calls:
                        ctx.ended()
                    result = ctx.end(commit=False, version=2, epoch=now, producer_id=pid)
            assert result.error is None
            assert 0 <= result.epoch <= 32_766
            seen.append((result.producer_id, result.epoch))
        assert len(set(seen)) == 4, f"{path}: {seen}"
        assert seen[-1][0] >= 1_000, f"{path}: {seen}"
        assert ctx.current.producer_epoch <= 32_766


def test_a_rotation_writes_markers_of_the_old_producer() -> None:
    ctx = TransactionContext(stored_at(S.ONGOING, 32_766, 2))
    ctx.end(version=2)
    assert (ctx.calls[0].producer_id, ctx.calls[0].epoch) == (9, 32_767)
    ctx.restart()
    assert (ctx.calls[0].producer_id, ctx.calls[0].epoch) == (9, 32_767)
    ctx.ended()
    assert ctx.end(version=2, epoch=32_766, producer_id=9) == EndResult(producer_id=1_000, epoch=0)


def test_requests_wait_for_a_producer_id_one_at_a_time() -> None:
    ctx = TransactionContext(stored_at(S.ONGOING, 32_766, 2))
    ctx.allocates = False
    assert ctx.end(version=2) is None
    assert ctx.end(version=2).error is E.CONCURRENT_TRANSACTIONS
    assert ctx.init().error is E.CONCURRENT_TRANSACTIONS
    assert ctx.add(P1, version=2).error is E.CONCURRENT_TRANSACTIONS
    ctx.sleep(60_000)
    assert ctx.state.value == "Ongoing", "the pending end comes first"
    ctx.post(ProducerIdAllocated(50))
    assert ctx.state.value == "PrepareCommit"
    assert ctx.current.next_producer_id == 50


def test_without_a_producer_id_a_client_retries_and_a_timeout_fires_again() -> None:
    ctx = TransactionContext(stored_at(S.ONGOING, 32_766, 2))
    ctx.allocates = False
    ctx.end(version=2)
    ctx.post(ProducerIdAllocated(None))
    assert list(ctx.replies.values()) == [EndResult(error=E.COORDINATOR_NOT_AVAILABLE)]
    ctx.sleep(60_000)
    ctx.post(ProducerIdAllocated(None))
    ctx.sleep(2_000)
    ctx.post(ProducerIdAllocated(50))
    assert ctx.state is S.PREPARE_ABORT


def test_an_unasked_producer_id_is_ignored(ctx: TransactionContext) -> None:
    ctx.post(ProducerIdAllocated(50))
    assert ctx.current.producer_id == 1_000


def test_a_restart_ends_participants_again_before_any_response(ctx: TransactionContext) -> None:
    began(ctx)
    ctx.end(commit=False)
    ctx.restart()
    assert ctx.calls[0].participants == (P0, P1, GroupId("g"))
    assert not ctx.calls[0].commit
    assert ctx.add().error is E.CONCURRENT_TRANSACTIONS
    ctx.ended()
    assert ctx.state is S.COMPLETE_ABORT


def test_an_idle_id_writes_that_it_is_complete(ctx: TransactionContext) -> None:
    began(ctx)
    ctx.end()
    ctx.ended()
    ctx.sleep(5_000)
    assert ctx.storage.stored.state is S.COMPLETE_COMMIT
    assert ctx.storage.stored.participants() == []
    ctx.restart()
    assert ctx.calls == []


def test_an_unused_id_expires() -> None:
    ctx = TransactionContext()
    ctx.init()
    ctx.sleep(7 * DAY_MS - 1)
    assert not ctx.machine.is_new
    ctx.sleep(60_000)
    assert ctx.machine.is_new
    assert ctx.storage.nothing
    assert ctx.timers == {}
    assert ctx.add().error is E.INVALID_PRODUCER_ID_MAPPING
    for _ in range(2):
        assert ctx.init(1_000, 0) == InitResult(producer_id=1_001, epoch=0), "and again"


def test_use_postpones_expiry() -> None:
    ctx = TransactionContext()
    ctx.init()
    for _ in range(5):
        ctx.sleep(6 * DAY_MS)
        ctx.init()
    assert ctx.current.producer_epoch == 5


def test_an_open_transaction_does_not_expire() -> None:
    ctx = TransactionContext(NEW, TransactionSettings(expiration_ms=1_000))
    ctx.init()
    ctx.add()
    ctx.end()
    ctx.sleep(20_000)
    assert ctx.state is S.PREPARE_COMMIT
    ctx.ended(ctx.calls[0])
    ctx.sleep(2_000)
    assert ctx.machine.is_new


EVENTS = st.one_of(
    st.builds(Init, token=st.just(0), timeout_ms=st.just(60_000), producer_id=st.sampled_from([-1, 8, 9]),
              epoch=st.sampled_from([-1, 3, 4, 5, 32_766])),
    st.builds(Add, token=st.just(0), producer_id=st.sampled_from([8, 9]), epoch=st.sampled_from([4, 5, 6, 32_766]),
              participants=st.sampled_from([(P0,), (P1, GroupId("g"))]), version=st.integers(1, 2)),
    st.builds(End, token=st.just(0), producer_id=st.sampled_from([8, 9]), epoch=st.sampled_from([3, 4, 5, 6, 32_766]),
              commit=st.booleans(), version=st.integers(1, 2)),
    st.builds(Ended, st.sampled_from([2, 3, 4]), st.sampled_from([(), (P0,), (P0, P1, GroupId("g"))])),
    st.builds(TopicGone, st.just(TOPIC)),
    st.builds(ProducerIdAllocated, st.sampled_from([None, 77])),
    st.builds(TimerFired, st.sampled_from(TimerKind)),
)  # fmt: skip


def reachable(before: S, after: S) -> bool:
    """Whether Kafka's table has a way, which may pass a prepared state in one event."""
    if before is after or before in VALID_PREVIOUS_STATES[after]:
        return True
    return any(
        each.prepared and each in VALID_PREVIOUS_STATES[after] and before in VALID_PREVIOUS_STATES[each] for each in S
    )


@given(
    st.sampled_from(S), st.sampled_from([5, 32_765, 32_766]), st.integers(1, 2), st.sampled_from([-1, 4]),
    st.lists(st.tuples(EVENTS, st.integers(0, 70_000)), max_size=8),
)  # fmt: skip
def test_every_event_in_every_state_leads_to_a_valid_state(
    state: S, epoch: int, version: int, last: int, events: list[tuple[Event, int]]
) -> None:
    ctx = TransactionContext(stored_at(state, epoch, version, last_epoch=last, previous_producer_id=8))
    ctx.allocates = False
    asked = 0
    for number, (event, ms) in enumerate(events):
        before, stored = ctx.current, ctx.storage.stored
        if isinstance(event, Init | Add | End):
            event = replace(event, token=number)  # noqa: PLW2901 - each has its own
            asked += 1
        ctx.ticks_ms += ms
        ctx.post(event)
        after = ctx.current

        assert reachable(before.state, after.state)
        assert after.producer_epoch >= before.producer_epoch or after.producer_id != before.producer_id
        assert after.number - before.number in (0, 1)
        assert not after.state.commits or before.state in (after.state, S.ONGOING, S.PREPARE_COMMIT)
        if after.state.prepared and not before.state.prepared:
            assert ctx.storage.stored.state is after.state, "a decision that is not durable"
        if before.state.prepared and after.state.prepared:
            assert after.state is before.state, "a decision that changed"
        if ctx.storage.stored is stored:
            told = [each for each in ctx.effects if isinstance(each, Reply) and each.result.error is None]
            assert before == after or before.state.prepared, told
        for effect in ctx.effects:
            assert not isinstance(effect, SetTimer) or effect.deadline_ms >= ctx.ticks_ms
            if isinstance(effect, EndParticipants):
                assert ctx.storage.stored.state.prepared
                assert ctx.storage.stored.state.commits == effect.commit
        answered = sum(1 for token in ctx.replies if isinstance(token, int))
        assert answered + 2 >= asked, "at most one request waits for participants and one for a producer ID"
