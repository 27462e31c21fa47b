"""A server whose memory is full: it refuses to write, and still serves and keeps everything it acknowledged."""

from collections.abc import Iterator

import pytest
from tests.harness.ledger import Ledger
from tests.harness.wire import Wire, batch

from headrace.kafka.errors import Code
from headrace.testing import Server, server


@pytest.fixture
def small() -> Iterator[Server]:
    with server(arguments=["--maxmemory", "64mb"]) as running:
        yield running


def test_full_it_refuses_and_reads_and_after_a_deletion_writes_again(small: Server) -> None:
    with Ledger(small.kafka, "large", value_bytes=10_000, message_timeout_ms=3_000) as ledger:
        while "records are refused" not in small.log():  # on a busy machine the producer's patience can end before
            ledger.send(100)
        ledger.settle()
        print(ledger)
        with Wire(small.kafka) as client:
            assert client.offset("large", -1).offset > 3_000
            answer = client.produce("large", batch(b"one more" * 100_000))
            assert answer.error_code == Code.KAFKA_STORAGE_ERROR
            assert "maxmemory" in str(answer.error_message)
            ledger.check(small.kafka)
            assert "records are refused" in small.log()
            # Full it also starts.
            small.restart()
        ledger.check(small.kafka)
    with Wire(small.kafka) as client:
        client.delete("large")
    with Ledger(small.kafka, "next", value_bytes=10_000) as ledger:
        ledger.send(2_000)
        ledger.settle()
        assert ledger.refused == {}
        ledger.check(small.kafka)
