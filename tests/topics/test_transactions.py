"""The transactions of one log, against a model that reads the whole log."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from headrace.topics.transactions import (
    AbortedTotal,
    AbortedTransaction,
    AbortedTransactions,
    OpenTransaction,
    Transactions,
    Unstable,
)


class Batch(NamedTuple):
    producer: int
    transactional: bool = True


class End(NamedTuple):
    producer: int
    commit: bool


Log = list[Batch | End]
"""Each takes one offset."""
PRODUCERS = st.integers(1, 4)
LOGS: st.SearchStrategy[Log] = st.lists(
    st.one_of(st.builds(Batch, PRODUCERS), st.builds(End, PRODUCERS, st.booleans())), max_size=40
)


def replay(transactions: Transactions, log: Log, first: int = 0) -> Transactions:
    for offset, each in enumerate(log, first):
        if isinstance(each, Batch):
            transactions.begin(OpenTransaction(each.producer, offset, 0, 5))
        else:
            transactions.end(each.producer, offset, commit=each.commit)
    return transactions


def aborted_in(log: Log) -> list[tuple[int, int, int]]:
    """Producer, first offset and marker of each aborted transaction."""
    first: dict[int, int] = {}
    found = []
    for offset, each in enumerate(log):
        if isinstance(each, Batch):
            first.setdefault(each.producer, offset)
        elif each.producer in first:
            begun = first.pop(each.producer)
            if not each.commit:
                found.append((each.producer, begun, offset))
    return found


@given(LOGS, st.data())
def test_the_last_stable_offset_is_the_oldest_transaction_without_a_visible_marker(
    log: Log, data: st.DataObject
) -> None:
    transactions = replay(Transactions(), log)
    first: dict[int, int] = {}
    visible = 0
    while visible < len(log):
        visible = data.draw(st.integers(visible + 1, len(log)))
        transactions.finish(visible)
        first, undecided = {}, []
        for offset, each in enumerate(log):
            if isinstance(each, Batch):
                first.setdefault(each.producer, offset)
            elif each.producer in first:
                begun = first.pop(each.producer)
                if offset >= visible:
                    undecided.append(begun)
        assert transactions.stable_end(visible) == min([*first.values(), *undecided, visible])
    assert {each.producer_id: each.first_offset for each in transactions.open.values()} == first


@given(LOGS, st.integers(0, 40), st.integers(0, 40))
def test_a_reader_gets_every_aborted_transaction_of_its_range(log: Log, offset: int, end: int) -> None:
    transactions = replay(Transactions(), log)
    transactions.finish(len(log))
    found = transactions.aborted.between(offset, end)
    needed = {(producer, first) for producer, first, marker in aborted_in(log) if marker >= offset and first < end}
    assert needed == {(each.producer_id, each.first_offset) for each in found}


class Stored:
    """What a storage keeps."""

    def __init__(self) -> None:
        self.unstable: dict[int, Unstable] = {}
        self.aborted: list[AbortedTransaction] = []

    def save(self, transactions: Transactions, log_start: int = 0) -> None:
        changes = transactions.take_changes(log_start)
        if changes is None:
            return
        for first, each in changes.unstable.items():
            if each is None:
                self.unstable.pop(first, None)
            else:
                self.unstable[first] = each
        self.aborted = [each for each in (*self.aborted, *changes.aborted) if each.marker_offset >= log_start]

    def load(self) -> Transactions:
        return Transactions(self.unstable.values(), AbortedTransactions(self.aborted), used=True)


@given(LOGS, st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=4), st.integers(0, 40))
def test_a_snapshot_and_the_tail_are_the_whole_log(log: Log, saves: list[tuple[int, bool]], visible: int) -> None:
    """Snapshots after any batches, some of them failed; markers may wait for replicas at any of them."""
    stored, live, done = Stored(), Transactions(), 0
    for wanted, fails in sorted(saves):
        upto = max(done, min(wanted, len(log)))
        replay(live, log[done:upto], done)
        live.finish(min(visible, upto))
        if fails:
            live.keep_changes(live.take_changes(0))
        else:
            stored.save(live)
            saved = upto
        done = upto
    saved = max([0, *(min(wanted, len(log)) for wanted, fails in saves if not fails)])
    recovered = replay(stored.load(), log[saved:], saved)
    whole = replay(Transactions(), log)
    for each in (recovered, whole):
        each.finish(visible)
    assert recovered.unstable() == whole.unstable()
    assert recovered.open == whole.open
    assert recovered.aborted.last(len(recovered.aborted)) == whole.aborted.last(len(whole.aborted))
    for each in (recovered, whole):
        each.finish(len(log))
    assert recovered.unstable() == whole.unstable()
    assert recovered.stable_end(len(log)) == whole.stable_end(len(log))
    assert recovered.aborted.between(0, 100) == whole.aborted.between(0, 100)


def test_a_producer_has_one_transaction_at_a_time() -> None:
    transactions = Transactions()
    transactions.begin(OpenTransaction(7, 3, 0, 5))
    transactions.begin(OpenTransaction(7, 4, 0, 6))
    assert [each.first_offset for each in transactions.open.values()] == [3]
    assert transactions.end(7, 5, commit=True)
    assert not transactions.end(7, 6, commit=True)
    transactions.begin(OpenTransaction(7, 7, 0, 8))
    assert transactions.marker_in_flight(7) == 5
    assert transactions.stable_end(8) == 3
    assert transactions.finish(6)
    assert transactions.stable_end(8) == 7
    assert transactions.marker_in_flight(7) is None


def test_a_log_without_transactions_saves_nothing() -> None:
    transactions = Transactions()
    assert transactions.take_changes(0) is None
    assert not transactions.end(7, 0, commit=False)
    assert not transactions.unsaved


def aborted(marker: int) -> AbortedTransaction:
    return AbortedTransaction(7, marker - 1, marker, marker + 1)


def test_the_oldest_aborted_transactions_leave_memory_once_they_are_saved() -> None:
    found = AbortedTransactions(most=20)
    for marker in range(1, 42, 2):
        found.add(aborted(marker))
    assert len(found) == 21, "storage does not have them yet"
    found.unsaved = 0
    found.add(aborted(43))
    assert len(found) == 20
    assert found.complete_from == 4
    assert [each.first_offset for each in found.between(4, 8)] == [4, 6]


def test_all_logs_together_are_bounded() -> None:
    total = AbortedTotal(10)
    logs = [AbortedTransactions(total=total) for _ in range(3)]
    for marker in range(1, 20, 2):
        for each in logs:
            each.add(aborted(marker))
            each.unsaved = 0
    assert total.count <= 10 + len(logs)
    for each in logs:
        each.release()
    assert total.count == 0


def test_trimmed_ones_are_forgotten() -> None:
    found = AbortedTransactions([aborted(marker) for marker in (1, 3, 5)])
    assert found.trim(3)
    assert [each.first_offset for each in found.between(0, 100)] == [2, 4]
    assert not found.trim(3)


def test_logs_without_transactions_share_what_they_do_not_have() -> None:
    """A server may have ten thousand of them."""
    first, second = Transactions(), Transactions()
    assert first.open is second.open
    first.begin(OpenTransaction(7, 0, 0, 5))
    first.end(7, 1, commit=False)
    first.finish(2)
    assert (len(first.aborted), len(second.aborted), len(Transactions().aborted)) == (1, 0, 0)
    assert (first.unsaved, second.unsaved, second.has_unstable, second.used) == (True, False, False, False)


def test_the_first_transaction_of_a_log_counts() -> None:
    total = AbortedTotal(10)
    found = Transactions(total=total)
    found.begin(OpenTransaction(7, 0, 0, 5))
    found.end(7, 1, commit=False)
    found.finish(2)
    assert total.count == 1


def test_a_known_marker_is_not_added_again() -> None:
    found = AbortedTransactions([aborted(3)])
    found.add(aborted(3))
    assert (len(found), found.unsaved) == (1, 0)
