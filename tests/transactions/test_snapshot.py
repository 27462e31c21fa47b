import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.transactions import P0, P1, stored_at

from headrace.transactions.model import (
    NEW,
    DropTransaction,
    GroupId,
    SaveTransaction,
    StoredTransaction,
    TransactionState,
)
from headrace.transactions.snapshot import Snapshot, decode, encode


@given(
    st.sampled_from(TransactionState),
    st.integers(0, 32_767),
    st.integers(1, 2),
    st.booleans(),
    st.integers(1, 1 << 62),
    st.sets(st.sampled_from([P0, P1, GroupId("grün"), GroupId('"')]), min_size=1),
)
def test_every_state_survives_its_json(
    state: TransactionState, epoch: int, version: int, fenced: bool, number: int, participants: set[GroupId]
) -> None:
    stored = stored_at(state, epoch, version, fenced=fenced, started_ms=4, copies=2)
    stored = msgspec.structs.replace(stored, number=number)
    if state.open:
        stored = stored.with_participants(participants)

    assert decode(encode(stored)) == stored


def test_the_json_has_the_names_of_kafka() -> None:
    assert encode(stored_at(TransactionState.PREPARE_COMMIT)).decode() == (
        '{"state":"PrepareCommit","producer_id":9,"producer_epoch":5,"number":3,"timeout_ms":60000,'
        '"updated_ms":1700000000000,"partitions":{"00000000-0000-0000-0000-000000000007":[0]}}'
    )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"state":"Ongoing"}',
        b'{"state":"Dead","producer_id":9,"producer_epoch":5}',
        b'{"state":"Empty","producer_id":-1,"producer_epoch":5}',
        b'{"state":"Empty","producer_id":9,"producer_epoch":-1}',
        b'{"state":"Empty","producer_id":9,"producer_epoch":32768}',
        b'{"state":"Empty","producer_id":9,"producer_epoch":5,"version":3}',
        b'{"state":"Empty","producer_id":9,"producer_epoch":5,"groups":["g"]}',
        b'{"state":"Empty","producer_id":9,"producer_epoch":5,"next_producer_id":10}',
        b'{"state":"Ongoing","producer_id":9,"producer_epoch":5,"groups":["g"]}',
        b'{"state":"Ongoing","producer_id":9,"producer_epoch":5,"number":1,"partitions":{"x":[0]}}',
        b'{"state":"Ongoing","producer_id":9,"producer_epoch":5,"number":0,"groups":["g"]}',
        b'{"state":"Ongoing","producer_id":9,"producer_epoch":5,"number":1,"copies":0}',
    ],
)
def test_a_state_that_cannot_occur_is_rejected(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(text)


def test_a_snapshot_follows_the_accepted_changes() -> None:
    snapshot = Snapshot()
    assert snapshot.nothing
    stored: StoredTransaction = stored_at(TransactionState.EMPTY)
    snapshot.apply([SaveTransaction(stored)])
    assert snapshot.stored == stored
    assert not snapshot.nothing
    snapshot.apply([DropTransaction()])
    assert snapshot.stored is NEW
