"""Messages between brokers about transactions: a way to JSON and back that changes nothing."""

from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.coordinator.remote_transactions import (
    Participants,
    Question,
    RemoteAnswer,
    RemoteQuestion,
    json_bytes,
    packed,
)
from headrace.transactions.effects import AddResult, EndResult, LookupResult, Result, VerifyResult
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Add, Lookup, Verify
from headrace.transactions.model import GroupId, Participant, PartitionId

PLACE, GROUP = PartitionId(UUID(int=5), 3), GroupId("ü")
PARTICIPANTS = st.lists(
    st.one_of(
        st.builds(PartitionId, st.uuids(), st.integers(0, 2**31 - 1)),
        st.builds(GroupId, st.text(max_size=20)),
    ),
    unique=True,
)


@given(PARTICIPANTS)
def test_participants_keep_their_identity_and_their_size_is_bounded(some: list[Participant]) -> None:
    content = msgspec.json.encode(packed(some))
    found = msgspec.json.decode(content, type=Participants).as_list()
    assert set(found) == set(some)
    assert len(found) == len(some)
    assert len(content) <= sum(map(json_bytes, some)) + len('{"partitions":{},"groups":[]}')


def add(one: Participant) -> Add:
    return Add(token=object(), producer_id=7, epoch=2, participants=(one,), version=2, copies=3)


def verify(one: Participant) -> Verify:
    return Verify(token=object(), producer_id=7, epoch=2, participants=(one,))


def lookup(one: Participant) -> Lookup:
    return Lookup(token=object(), producer_id=7, epoch=2, participant=one)


@pytest.mark.parametrize("make", [add, verify, lookup])
@pytest.mark.parametrize("one", [PLACE, GROUP])
def test_a_question_arrives_as_it_was_asked(make: "type[Add]", one: Participant) -> None:
    event: Question = make(one)  # type: ignore[call-arg]
    sent = msgspec.json.encode(RemoteQuestion.of("default", "id", event))
    found = msgspec.json.decode(sent, type=RemoteQuestion)
    assert (found.cluster, found.transactional_id) == ("default", "id")
    assert msgspec.structs.replace(found.event(), token=event.token) == event


@pytest.mark.parametrize(
    ("event", "result"),
    [
        (add(PLACE), AddResult(number=9)),
        (add(PLACE), AddResult(error=TransactionError.PRODUCER_FENCED)),
        (verify(PLACE), VerifyResult(number=9)),
        (verify(PLACE), VerifyResult(number=9, missing=frozenset([PLACE]))),
        (verify(PLACE), VerifyResult(error=TransactionError.NOT_COORDINATOR)),
        (lookup(GROUP), LookupResult(open=True)),
        (lookup(GROUP), LookupResult(open=False)),
        (lookup(GROUP), LookupResult(error=TransactionError.COORDINATOR_LOAD_IN_PROGRESS)),
    ],
)
def test_an_answer_arrives_as_it_was_given(event: Question, result: Result) -> None:
    sent = msgspec.json.encode(RemoteAnswer.of(result))
    assert msgspec.json.decode(sent, type=RemoteAnswer).result(event) == result


def test_an_unknown_error_can_be_retried() -> None:
    found = RemoteAnswer("LATER_ERROR").result(add(PLACE))
    assert found.error is TransactionError.COORDINATOR_NOT_AVAILABLE


def test_only_participants_ask() -> None:
    with pytest.raises(AssertionError):
        RemoteQuestion.of("default", "id", Verify(token=1, producer_id=7, epoch=0, participants=(PLACE, GROUP)))
    with pytest.raises(AssertionError):
        RemoteAnswer.of(EndResult())
