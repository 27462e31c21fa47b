"""Every state with every epoch, outcome and version against the rules of Kafka 4.3.1."""

from itertools import product

import msgspec
import pytest
from tests.harness.transactions import P0, stored_at

from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Add, End, Init
from headrace.transactions.model import NEW, StoredTransaction, TransactionState
from headrace.transactions.rules import EndStep, InitStep, on_end, on_init, on_use

E = TransactionError
S = TransactionState
MAX_MS = 900_000


def init(current: StoredTransaction, producer_id: int = -1, epoch: int = -1, timeout_ms: int = 60_000) -> object:
    return on_init(current, Init(token=0, timeout_ms=timeout_ms, producer_id=producer_id, epoch=epoch), MAX_MS)


def end(current: StoredTransaction, epoch: int, commit: bool, version: int, producer_id: int = 9) -> object:
    return on_end(current, End(token=0, producer_id=producer_id, epoch=epoch, commit=commit, version=version))


@pytest.mark.parametrize("timeout_ms", [-1, 0, MAX_MS + 1])
@pytest.mark.parametrize("state", S)
def test_a_timeout_out_of_bounds_is_rejected_first(timeout_ms: int, state: S) -> None:
    assert init(stored_at(state), 1, 1, timeout_ms) is E.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize(
    ("state", "step"),
    [
        (S.EMPTY, InitStep.BUMP),
        (S.COMPLETE_COMMIT, InitStep.BUMP),
        (S.COMPLETE_ABORT, InitStep.BUMP),
        (S.ONGOING, InitStep.ABORT),
        (S.PREPARE_COMMIT, E.CONCURRENT_TRANSACTIONS),
        (S.PREPARE_ABORT, E.CONCURRENT_TRANSACTIONS),
    ],
)
def test_a_new_producer(state: S, step: object) -> None:
    assert init(stored_at(state)) is step
    assert init(stored_at(state), 9, 5) is step, "one that continues in the current epoch"


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize(("producer_id", "epoch"), [(9, 3), (9, 6), (8, 5), (8, 4)])
def test_a_fenced_producer_does_not_continue(state: S, producer_id: int, epoch: int) -> None:
    expected = E.PRODUCER_FENCED
    if state.prepared and producer_id == 9:
        expected = E.CONCURRENT_TRANSACTIONS
    assert init(stored_at(state, last_epoch=4), producer_id, epoch) is expected


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_a_producer_that_lost_the_response_gets_it_again(state: S) -> None:
    assert init(stored_at(state, last_epoch=4), 9, 4) is InitStep.REPEAT
    rotated = stored_at(state, 0, last_epoch=32_766, previous_producer_id=8)
    assert init(rotated, 8, 32_766) is InitStep.REPEAT
    later = msgspec.structs.replace(rotated, producer_epoch=1, last_epoch=0)
    assert init(later, 8, 32_766) is E.PRODUCER_FENCED


def test_a_repeated_init_does_not_abort_the_next_transaction() -> None:
    assert init(stored_at(S.ONGOING, last_epoch=4), 9, 4) is E.PRODUCER_FENCED


@pytest.mark.parametrize("epoch", [32_766, 32_767])
def test_exhausted_epochs_need_another_producer_id(epoch: int) -> None:
    assert init(stored_at(S.COMPLETE_ABORT, epoch)) is InitStep.ROTATE
    assert init(NEW) is InitStep.ROTATE
    assert init(NEW, 4, 4) is InitStep.ROTATE, "of an ID that has expired"


def test_no_client_receives_the_epoch_of_a_fence() -> None:
    assert init(stored_at(S.COMPLETE_ABORT, 32_767, last_epoch=32_766), 9, 32_766) is InitStep.ROTATE
    assert end(stored_at(S.COMPLETE_ABORT, 32_767, last_epoch=32_766), 32_766, False, 2) is E.PRODUCER_FENCED
    add = Add(token=0, producer_id=9, epoch=32_767, participants=(P0,))
    assert on_use(stored_at(S.COMPLETE_ABORT, 32_767), add) is E.PRODUCER_FENCED


@pytest.mark.parametrize("state", S)
def test_use_needs_the_current_producer(state: S) -> None:
    current = stored_at(state)
    allowed = E.CONCURRENT_TRANSACTIONS if state.prepared else None
    for producer_id, epoch, expected in (
        (8, 5, E.INVALID_PRODUCER_ID_MAPPING), (9, 4, E.PRODUCER_FENCED), (9, 6, E.PRODUCER_FENCED), (9, 5, allowed),
    ):  # fmt: skip
        add = Add(token=0, producer_id=producer_id, epoch=epoch, participants=(P0,))
        assert on_use(current, add) is expected
    assert on_use(NEW, Add(token=0, producer_id=-1, epoch=-1, participants=())) is E.INVALID_PRODUCER_ID_MAPPING


def expected_of_version_1(state: S, commit: bool) -> object:
    if state is S.ONGOING:
        return EndStep.PREPARE
    if state is S.EMPTY or state.commits != commit:
        return E.INVALID_TXN_STATE
    return E.CONCURRENT_TRANSACTIONS if state.prepared else EndStep.REPEAT


@pytest.mark.parametrize(("state", "commit"), list(product(S, [False, True])))
def test_ends_of_the_first_protocol(state: S, commit: bool) -> None:
    current = stored_at(state)
    assert end(current, 5, commit, 1) is expected_of_version_1(state, commit)
    assert end(current, 4, commit, 1) is E.PRODUCER_FENCED
    assert end(current, 6, commit, 1) is E.PRODUCER_FENCED
    assert end(current, 5, commit, 1, 8) is E.INVALID_PRODUCER_ID_MAPPING
    assert end(NEW, -1, commit, 1, -1) is E.INVALID_PRODUCER_ID_MAPPING


COMMIT, ABORT = True, False
OF_VERSION_2 = {
    # (state, outcome of the request): (of the epoch before, of the current epoch)
    (S.EMPTY, COMMIT): (E.PRODUCER_FENCED, E.INVALID_TXN_STATE),
    (S.EMPTY, ABORT): (E.PRODUCER_FENCED, EndStep.EMPTY_ABORT),
    (S.ONGOING, COMMIT): (E.PRODUCER_FENCED, EndStep.PREPARE),
    (S.ONGOING, ABORT): (E.PRODUCER_FENCED, EndStep.PREPARE),
    (S.PREPARE_COMMIT, COMMIT): (E.CONCURRENT_TRANSACTIONS, E.PRODUCER_FENCED),
    (S.PREPARE_COMMIT, ABORT): (E.INVALID_TXN_STATE, E.PRODUCER_FENCED),
    (S.PREPARE_ABORT, COMMIT): (E.INVALID_TXN_STATE, E.PRODUCER_FENCED),
    (S.PREPARE_ABORT, ABORT): (E.CONCURRENT_TRANSACTIONS, E.PRODUCER_FENCED),
    (S.COMPLETE_COMMIT, COMMIT): (EndStep.REPEAT, E.INVALID_TXN_STATE),
    (S.COMPLETE_COMMIT, ABORT): (E.INVALID_TXN_STATE, EndStep.EMPTY_ABORT),
    (S.COMPLETE_ABORT, COMMIT): (E.INVALID_TXN_STATE, E.INVALID_TXN_STATE),
    (S.COMPLETE_ABORT, ABORT): (EndStep.REPEAT, EndStep.EMPTY_ABORT),
}


@pytest.mark.parametrize(("state", "commit"), list(product(S, [False, True])))
def test_ends_of_the_second_protocol(state: S, commit: bool) -> None:
    current = stored_at(state, version=2, last_epoch=4)
    assert (end(current, 4, commit, 2), end(current, 5, commit, 2)) == OF_VERSION_2[state, commit]
    assert end(current, 3, commit, 2) is E.PRODUCER_FENCED
    assert end(current, 6, commit, 2) is E.PRODUCER_FENCED
    assert end(current, 5, commit, 2, 8) is E.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("state", [S.PREPARE_ABORT, S.COMPLETE_ABORT])
def test_a_commit_that_meets_an_abort_by_the_coordinator_is_fenced(state: S) -> None:
    assert end(stored_at(state, version=2, fenced=True, last_epoch=4), 4, True, 2) is E.PRODUCER_FENCED


@pytest.mark.parametrize("version", [1, 2])
def test_a_fenced_producer_does_not_get_the_epoch_of_a_later_one(version: int) -> None:
    assert end(stored_at(S.COMPLETE_ABORT, version=version, last_epoch=-1), 4, False, 2) is E.PRODUCER_FENCED
    assert end(stored_at(S.COMPLETE_ABORT, version=1, last_epoch=4), 4, False, 2) is E.PRODUCER_FENCED


@pytest.mark.parametrize("commit", [False, True])
def test_an_end_before_a_rotation_is_repeated_with_the_old_producer(commit: bool) -> None:
    state = S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT
    rotated = stored_at(state, 0, 2, last_epoch=32_766, previous_producer_id=8)
    assert end(rotated, 32_766, commit, 2, 8) is EndStep.REPEAT
    assert end(rotated, 32_766, not commit, 2, 8) is E.INVALID_TXN_STATE
    assert end(rotated, 32_765, commit, 2, 8) is E.INVALID_PRODUCER_ID_MAPPING
    assert (
        end(stored_at(S.ONGOING, 0, 2, previous_producer_id=8, last_epoch=32_766), 32_766, commit, 2, 8)
        is E.PRODUCER_FENCED
    )
