import re
from collections.abc import Iterator

import pytest

from headrace.testing import Server, server
from tests.harness.ledger import Ledger, LedgerBroken, compare, numbers


@pytest.fixture(scope="module")
def started() -> Iterator[Server]:
    with server(num_partitions=2) as running:
        yield running


def test_a_log_as_it_should_be_passes() -> None:
    compare("t-0", [], {}, sent=0)
    compare("t-0", [0, 1, 2], {0: 0, 1: 1, 2: 2}, sent=3)


def test_unacknowledged_records_may_exist() -> None:
    compare("t-0", [0, 2, 3], {0: 0, 3: 2}, sent=5)


@pytest.mark.parametrize(
    ("found", "acknowledged", "message"),
    [
        ([0, 1], {0: 0, 1: 1, 2: 2}, "record 2 was acknowledged with offset 2, where the log has ended; it is nowhere"),
        ([0, 2], {0: 0, 1: 1}, "record 1 was acknowledged with offset 1, where record 2 is; it is nowhere"),
        ([0, 1, 2], {1: 2}, "record 1 was acknowledged with offset 2, where record 2 is; it is at offset 1"),
        ([0, 1, 1], {}, "record 1 follows 1 at offset 2"),
        ([1, 0], {}, "record 0 follows 1 at offset 1"),
        ([0, 9], {}, "record 9 was never sent"),
    ],
)
def test_lost_duplicate_and_disordered_records_are_reported(
    found: list[int], acknowledged: dict[int, int], message: str
) -> None:
    with pytest.raises(LedgerBroken, match=re.escape(f"t-0: {message}")):
        compare("t-0", found, acknowledged, sent=3)


def test_it_reads_what_it_sent(started: Server) -> None:
    with Ledger(started.kafka, "kept", partitions=2) as ledger:
        ledger.send(101)
        ledger.settle()
        ledger.check(started.kafka)
    assert ledger.acknowledged_count == 101
    assert numbers(started.kafka, "kept", 2) == [list(range(51)), list(range(50))]


def test_it_counts_what_was_refused(started: Server) -> None:
    with Ledger(started.kafka, "no-such-partition", partitions=3) as ledger:
        ledger.send(3)
        ledger.settle()
    assert ledger.refused == {"_UNKNOWN_PARTITION": 1}
