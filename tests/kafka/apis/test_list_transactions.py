"""ListTransactions: the transactional ids of a broker, and their filters."""

from typing import Any

import pytest
from tests.harness.wire import Wire
from tests.kafka.transactions import begun

from headrace.kafka.errors import Code
from headrace.protocol.messages import ListTransactionsRequest


def test_transactional_ids_are_listed(wire: Wire, topic: str) -> None:
    wire.create(topic)
    ongoing, done = begun(wire, f"{topic}-ongoing"), begun(wire, f"{topic}-done")
    for producer in (ongoing, done):
        producer.add(topic)
    assert done.end(commit=False) == Code.NONE
    ids = [ongoing.producer_id, done.producer_id]

    def listed(version: int = 1, **filters: Any) -> list[tuple[str, str]]:
        answer = wire.ask(ListTransactionsRequest(producer_id_filters=ids, **filters), version)
        return [(each.transactional_id, each.transaction_state) for each in answer.transaction_states]

    both = [(done.transactional_id, "CompleteAbort"), (ongoing.transactional_id, "Ongoing")]
    assert listed(0) == listed(1) == both
    assert listed(state_filters=["Ongoing"]) == both[1:]
    assert listed(duration_filter=3_600_000) == []
    answer = wire.ask(ListTransactionsRequest(state_filters=["Nothing"]), 1)
    assert (answer.unknown_state_filters, answer.transaction_states) == (["Nothing"], [])
    assert listed(2) == listed(2, transactional_id_pattern="") == both
    assert listed(2, transactional_id_pattern=f"{topic}-o.*") == both[1:]
    assert listed(2, transactional_id_pattern=f"{topic}-(done|ongoing)") == both
    assert listed(2, transactional_id_pattern=f"{topic}-o", state_filters=["Ongoing"]) == [], "it matches whole ids"
    assert listed(2, transactional_id_pattern=".*-done", state_filters=["Ongoing"]) == []
    assert ongoing.end(commit=True) == Code.NONE


@pytest.mark.parametrize("pattern", ["(", "(a)\\1", "x" * 2_000, "(a?){1000}" * 50])
def test_an_invalid_pattern_is_refused(wire: Wire, pattern: str) -> None:
    answer = wire.ask(ListTransactionsRequest(transactional_id_pattern=pattern), 2)
    assert (answer.error_code, answer.transaction_states) == (Code.INVALID_REGULAR_EXPRESSION, [])
