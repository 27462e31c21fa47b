import pytest
from tests.harness.transactions import P0

from headrace.transactions.events import Add, End, Init, Lookup, Verify
from headrace.transactions.model import NO_EPOCH, NO_PRODUCER_ID, TV1


def test_requests_of_old_clients_have_the_first_version_and_no_producer() -> None:
    assert (Init(token=0, timeout_ms=1).producer_id, Init(token=0, timeout_ms=1).epoch) == (NO_PRODUCER_ID, NO_EPOCH)
    assert Add(token=0, producer_id=1, epoch=0, participants=(P0,)).version == TV1
    assert End(token=0, producer_id=1, epoch=0, commit=True).version == TV1


@pytest.mark.parametrize("kind", [Init, Add, Verify, Lookup, End])
def test_each_request_has_a_token_for_its_reply(kind: type) -> None:
    assert "token" in kind.__struct_fields__  # type: ignore[attr-defined]
