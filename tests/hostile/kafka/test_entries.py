"""A fetch of large entries, which Redis programs add to native topics, delays no other client."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from redis import Redis

from headrace.kafka import apis
from headrace.testing import server
from headrace.testing.process import Server
from tests.harness.wire import Wire, fetch_request, opened
from tests.hostile.http.bystander import Bystander
from tests.hostile.kafka.attacking import carry_out
from tests.hostile.kafka.corpus import MIB, Attack, encoded

apis.load()
ENTRIES: dict[str, Any] = {
    "escaped": {"a": b"\1" * 8 * MIB, "b": b"\1" * 8 * MIB},
    "binary": {"a": b"\xff" * 30 * MIB, "b": b"\xff" * 30 * MIB},
    "fields": {str(number): "v" for number in range(300_000)},
}
"""A topic for each, with a small entry before and after it."""


LARGE, CLIENTS = 40 * MIB, 40


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Server, Bystander]]:
    with server(headrace_reads_bytes=48 * MIB) as started:
        with Wire(started.kafka) as wire, closing(Redis.from_url(started.storage, socket_timeout=60)) as link:
            for name, entry in ENTRIES.items():
                topic = wire.create(name, headrace_storage="native")
                for number, each in enumerate(({"v": "before"}, entry, {"v": "behind"})):
                    link.xadd(f"headrace:{topic}:0", each, id=f"{number + 1}-0")
            wire.create("large", headrace_storage="native")
            for number, size in enumerate((1, LARGE, 1)):
                link.xadd("headrace:large:0", {"value": b"x" * size}, id=f"{number + 1}-0")
        with closing(Bystander(started, http=False)) as bystander:
            yield started, bystander
        assert "Traceback" not in started.log()


@pytest.mark.parametrize("topic", ENTRIES)
def test_an_entry_that_is_no_record_is_skipped_without_harm(served: tuple[Server, Bystander], topic: str) -> None:
    started, bystander = served
    attack = Attack(topic, 1, encoded(fetch_request([(topic, 0, 2 << 10)]), 12), connections=4)
    print(bystander.harmless(lambda: carry_out(attack, started)))
    with Wire(started.kafka) as wire:
        for offset in (0, 2 << 10):
            found = opened(wire.fetch(topic, offset).records)
            if found[-1].offset == 1 << 10:
                found = opened(wire.fetch(topic, (1 << 10) + 1).records)
            assert found[-1].offset == 3 << 10, "what lies behind comes all the same"


def test_a_large_record_is_read_for_as_many_at_a_time_as_there_is_memory(served: tuple[Server, Bystander]) -> None:
    started, bystander = served
    wanted = encoded(fetch_request([("large", 0, 2 << 10)], max_bytes=MIB), 12)
    attack = Attack("large", 1, wanted, connections=CLIENTS)
    print(bystander.harmless(lambda: carry_out(attack, started)))
    with Wire(started.kafka) as wire:
        found = opened(wire.fetch("large", 2 << 10, max_bytes=MIB).records)
        assert [len(record.value or b"") for record in found] == [LARGE]
