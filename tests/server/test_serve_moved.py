"""A data directory that is moved away under a running server, and put back; and a journal that is removed."""

import os
import signal
from pathlib import Path

import pytest
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch, opened

from headrace.kafka.errors import Code
from headrace.protocol import messages as m
from headrace.testing import server

_OPENED_S = 1.5
"""Seconds in which a log would be recovered."""
_TURN = 5 << 20
"""Bytes after which the server has looked at its directory again."""


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_acknowledged_that_is_not_there_afterwards(tmp_path: Path, replaced: bool) -> None:
    """The producer sends again what was refused, as idempotent ones do."""
    value = b"x" * 500_000
    with server(data=tmp_path / "data", num_partitions=1) as running, Wire(running.kafka) as client:
        client.create("moved")
        producer = client.producer_id()
        sequence = 0

        def send(number: int) -> int:
            made = batch(b"%d " % number + value, producer_id=producer, producer_epoch=0, base_sequence=number)
            return client.produce("moved", made).error_code

        for _ in range(_TURN // len(value)):
            assert send(sequence) == 0
            sequence += 1
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        if replaced:
            (tmp_path / "data").mkdir()
        before = sequence
        while (code := send(sequence)) == 0:
            sequence += 1
            assert sequence - before <= _TURN // len(value)
        assert code == Code.KAFKA_STORAGE_ERROR
        if replaced:
            (tmp_path / "data").rmdir()
        (tmp_path / "elsewhere").rename(tmp_path / "data")
        wait_for(lambda: send(sequence) == 0, "the server to take records again")
        sequence += 1
        assert send(sequence) == 0
        found: list[int] = []
        while len(found) <= sequence:
            read = opened(client.fetch("moved", len(found)).records)
            assert [record.offset for record in read] == list(range(len(found), len(found) + len(read)))
            found += [int((record.value or b"").split()[0]) for record in read]
        assert found == list(range(sequence + 1))


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("what", ["log", "native", "commit"])
def test_without_a_journal_nothing_is_acknowledged_from_then_on(tmp_path: Path, replaced: bool, what: str) -> None:
    """Neither the first, by whose answer the server sees it, nor the same once more, which Redis has by then."""
    data = tmp_path / "data"
    with server(data=data, num_partitions=1, headrace_journal_bytes=0) as running, Wire(running.kafka) as client:
        client.create("moved", 1, **({"headrace_storage": "native"} if what == "native" else {}))

        producer, sequence = client.producer_id(), 0

        def ask() -> int:
            if what != "commit":
                made = batch(b"x", producer_id=producer, producer_epoch=0, base_sequence=sequence)
                return client.produce("moved", made).error_code
            place = m.OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=0, committed_offset=0, committed_metadata=""
            )
            topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name="moved", partitions=[place])
            asked = m.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[topic])
            code: int = client.ask(asked, 8).topics[0].partitions[0].error_code
            return code

        assert ask() == 0
        sequence += 1
        data.rename(tmp_path / "elsewhere")
        if replaced:
            data.mkdir()
        assert ask() != 0
        assert client.is_silent(_OPENED_S)
        assert ask() != 0
        # It can be read.
        assert opened(client.fetch("moved", 0).records) or what == "commit"
        if replaced:
            data.rmdir()
        (tmp_path / "elsewhere").rename(data)
        wait_for(lambda: ask() == 0, "the server to take something again")
        assert what != "log" or client.offset("moved", -1).offset == 2


def test_a_removed_journal_is_reported_and_recreated(tmp_path: Path) -> None:
    journal = tmp_path / "data" / "journal"
    with server(data=tmp_path / "data", num_partitions=1) as running, Wire(running.kafka) as client:
        client.create("kept")
        assert client.produce("kept", batch(b"before")).error_code == 0
        journal.unlink()

        def made() -> bool:
            assert client.produce("kept", batch(b"meanwhile")).error_code == 0
            return "the journal has been recreated" in running.log()

        wait_for(made, "a journal to be there")
        assert journal.exists()
        assert running.log().count("the journal file is missing") == 1


def test_records_acknowledged_by_such_a_journal_survive_a_kill_of_both(tmp_path: Path) -> None:
    journal = tmp_path / "data" / "journal"
    with server(data=tmp_path / "data", num_partitions=1) as running:
        with Wire(running.kafka) as client:
            client.create("kept")
            sent = 0

            def send() -> None:
                nonlocal sent
                assert client.produce("kept", batch(b"%d" % sent)).error_code == 0
                sent += 1

            # Before its first batch the server does not know whether the Valkey has memory, and takes none early.
            send()
            journal.unlink()

            def made() -> bool:
                send()
                return "the journal has been recreated" in running.log()

            wait_for(made, "a journal to be there")
            storage = running.storage_pid
            os.kill(storage, signal.SIGSTOP)
            for _ in range(20):
                send()
            running.kill()
            os.kill(storage, signal.SIGKILL)
        running.start()
        with Wire(running.kafka) as client:
            found: list[int] = []
            while len(found) < sent:
                read = opened(client.fetch("kept", len(found)).records)
                assert read
                found += [int(record.value or b"") for record in read]
        assert found == list(range(sent))
        assert "journal replayed" in running.log()
