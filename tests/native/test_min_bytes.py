"""A fetch of a native topic waits for its `min_bytes`, although the size of entries is unknown."""

import threading
from collections.abc import Iterator
from time import monotonic

import pytest
from tests.harness.wire import Wire, fetch_request, opened

from .conftest import Link, MakeMember

LEAST = 20_000
MOST_WAIT_MS = 6_000
ENTRIES = 40_000


@pytest.fixture
def trickle(link: Link, stream: str) -> Iterator[None]:
    """Entries that come one by one."""
    enough = threading.Event()

    def add() -> None:
        for _ in range(ENTRIES):
            if enough.is_set():
                return
            link.xadd(stream, {"value": bytes(100)})

    adding = threading.Thread(target=add)
    adding.start()
    yield
    enough.set()
    adding.join()


@pytest.mark.usefixtures("trickle")
@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "in a group"])
def test_arriving_entries_do_not_end_the_wait(topic: str, wire: Wire, member: MakeMember, grouped: bool) -> None:
    reader = wire
    if grouped:
        one = member()
        one.join()
        reader = one.reader
    at = 0
    for _ in range(6):
        began = monotonic()
        reader.send(fetch_request([(topic, 0, at)], max_wait_ms=MOST_WAIT_MS, min_bytes=LEAST), 12)
        [answer] = reader.receive().responses[0].partitions
        assert answer.error_code == 0
        assert len(answer.records or b"") >= LEAST or monotonic() - began >= MOST_WAIT_MS / 1000
        at = opened(answer.records)[-1].offset + 1
