"""SIGKILL right after a transaction: its marker and the records after it are where readers saw them."""

import contextlib
import threading
from functools import partial

import pytest
from confluent_kafka import KafkaException, Producer
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch, batches

from headrace.records.batch import read_header
from headrace.testing import server

pytestmark = pytest.mark.crash


def stable_to(wire: Wire, end: int) -> bool:
    return bool(wire.offset("t", -1, isolation=1).offset == end)


def test_a_marker_and_what_follows_it_survive_a_kill() -> None:
    with server(num_partitions=1) as running:
        with Wire(running.kafka) as wire:
            wire.create("t")
        for number in range(3):
            producer = Producer({"bootstrap.servers": running.kafka, "transactional.id": f"id-{number}"})
            producer.init_transactions(30)
            producer.begin_transaction()
            producer.produce("t", b"in a transaction")
            assert producer.flush(30) == 0

            def commit(producer: Producer = producer) -> None:
                # The server may be gone before it has answered.
                with contextlib.suppress(KafkaException):
                    producer.commit_transaction(60)

            with Wire(running.kafka) as wire:
                marked = wire.offset("t", -1).offset + 1
                committing = threading.Thread(target=commit)
                committing.start()
                wait_for(partial(stable_to, wire, marked), "the marker")
                epoch = read_header(bytes(batches(wire.fetch("t", marked - 1).records)[0][:61])).leader_epoch
                assert wire.produce("t", batch(b"acknowledged")).base_offset == marked
                running.kill()
            running.start()
            committing.join()
            with Wire(running.kafka) as wire:
                assert wire.offset("t", -1).offset == marked + 1
                assert wire.offset("t", -1, isolation=1).offset == marked + 1
                marker = read_header(bytes(batches(wire.fetch("t", marked - 1).records)[0][:61]))
                assert (marker.base_offset, marker.leader_epoch, marker.is_control) == (marked - 1, epoch, True)
        assert not list(running.data.glob("journal.set-aside-*"))
