"""The page of open transactions, and the form that aborts one."""

import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from tests.console.visiting import EVIL, Visit, ask, safe
from tests.harness.wire import Wire
from tests.kafka.transactions import TransactionalProducer, begun_in

from headrace.kafka.errors import Code
from headrace.testing import InProcessServer


@pytest.fixture
def wire(server: InProcessServer) -> Iterator[Wire]:
    with Wire(server.kafka) as client:
        yield client


def row_of(producer: TransactionalProducer) -> str:
    return urlencode(
        {"id": producer.transactional_id, "producer": str(producer.producer_id), "epoch": str(producer.epoch)}
    )


def test_open_transactions_are_listed_and_aborted(server: InProcessServer, wire: Wire) -> None:
    assert "This broker coordinates no open transactions." in ask(server, "/transactions").text
    assert 'href="/transactions"' in ask(server, "/brokers").html
    old = begun_in(wire, "written", EVIL)
    server.clock.advance(30)
    new = begun_in(wire, "other", "new")
    visit = Visit(server)
    page = visit.ask("/transactions")
    safe(page)
    assert "2 open on broker 1, which coordinates them" in page.text
    assert page.text.index("written-0") < page.text.index("other-0"), "the oldest first"
    assert re.search(rf"Ongoing [345]\d s 1 min {old.producer_id} / {old.epoch} written-0", page.text)
    searched = visit.ask("/transactions?q=NEW").text
    assert "1 found" in searched
    assert "written-0" not in searched

    done = visit.done("/transactions/abort", {"row": row_of(old)})
    assert "Its producer is fenced." in done.text
    assert old.end(commit=True) == Code.PRODUCER_FENCED
    assert new.end(commit=True) == Code.NONE


def test_only_the_transaction_of_the_row_is_aborted(server: InProcessServer, wire: Wire) -> None:
    producer = begun_in(wire, "kept", "kept")
    visit = Visit(server)
    visit.ask("/transactions")
    row = row_of(producer)
    assert producer.end(commit=True) == Code.NONE
    assert producer.send("kept", b"next") == Code.NONE
    assert visit.wrong("/transactions/abort", {"row": row}) == "The transaction has ended."
    unknown = urlencode({"id": "absent", "producer": "1", "epoch": "0"})
    assert visit.wrong("/transactions/abort", {"row": unknown}) == "The transaction has ended."
    assert visit.wrong("/transactions/abort", {"row": "&" * 9}) == "The transaction has ended."
    assert producer.end(commit=True) == Code.NONE
