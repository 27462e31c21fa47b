import pytest
from tests.harness.transactions import P0

from headrace.transactions.effects import refusal
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Add, End, Init, Lookup, Request, Verify

REQUESTS: list[Request] = [
    Init(token=0, timeout_ms=1),
    Add(token=0, producer_id=1, epoch=0, participants=(P0,)),
    Verify(token=0, producer_id=1, epoch=0, participants=(P0,)),
    Lookup(token=0, producer_id=1, epoch=0, participant=P0),
    End(token=0, producer_id=1, epoch=0, commit=True),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_a_refusal_has_the_type_of_the_result(request_: Request) -> None:
    refused = refusal(request_, TransactionError.NOT_COORDINATOR)

    assert refused.error is TransactionError.NOT_COORDINATOR
    assert type(refused).__name__ == type(request_).__name__ + "Result"


def test_a_refused_lookup_keeps_the_transaction_open() -> None:
    refused = refusal(Lookup(token=0, producer_id=1, epoch=0, participant=P0), TransactionError.NOT_COORDINATOR)

    assert refused.open  # type: ignore[union-attr]
