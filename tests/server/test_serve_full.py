"""A server whose memory is full: it refuses to write, and still serves and keeps everything it acknowledged."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.ledger import Ledger
from tests.harness.wire import Wire, batch

from headrace.kafka.errors import Code
from headrace.server import app
from headrace.server.config import StartError, load
from headrace.server.process import Stop
from headrace.storage import free_space
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


async def test_a_start_with_less_than_the_reserve_free_states_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(free_space, "free_bytes", lambda _: free_space.RESERVE_BYTES - 1)
    options, settings, oci = load({"data": str(tmp_path), "kafka": "127.0.0.1:0", "http": "127.0.0.1:0"}, environ={})
    with pytest.raises(StartError) as refused:
        await app.serve(options, settings, oci, lambda _: None, guest=Stop())
    assert str(refused.value) == (
        f"cannot write to {tmp_path}: less than 64 MiB are free on the disk of the data directory: free some of it; "
        "then start again"
    )
