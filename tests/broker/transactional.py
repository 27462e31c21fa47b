"""A partition with a coordinator that confirms transactions when a test says so."""

from tests.harness.memory import MemoryStorage

from headrace.broker.partition.admission import AdmitDone
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.participant import end_transaction
from headrace.broker.partition.source import COMMITTED, UNCOMMITTED
from headrace.records.build import build
from headrace.records.markers import Marker
from headrace.topics.model import Append, Appended


def sent(
    sequence: int,
    *,
    epoch: int = 0,
    producer: int = 7,
    count: int = 1,
    transaction: str | None = "id",
    adds: bool = False,
) -> Append:
    records = [(None, b"value", 1_000, ())] * count
    made = build(
        records,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transaction is not None,
    )
    return Append(made, count, 1_000, producer, epoch, sequence, transaction, adds)


class Coordinator:
    """Confirms transactions when a test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Append, AdmitDone]] = []
        self.number: int | None = None
        """Confirm at once with this number."""

    def __call__(self, topic: str, index: int, append: Append, done: AdmitDone) -> None:
        assert (topic, index) == ("t", 0)
        if self.number is not None:
            done(self.number)
        else:
            self.asked.append((append, done))

    def answer(self, result: int | Exception = 1) -> None:
        """Answer the oldest question."""
        self.asked.pop(0)[1](result)


class Log:
    """A partition with its coordinator, and the results of its requests."""

    def __init__(self, partition: LeaderPartition, storage: MemoryStorage) -> None:
        self.partition = partition
        self.storage = storage
        self.coordinator = Coordinator()
        partition.admission.admit = self.coordinator
        storage.logs.allowed = True
        self.results: list[Appended | Exception] = []
        self.ended: list[Exception | None] = []

    def append(self, *appends: Append) -> None:
        for each in appends:
            self.partition.append(each, self.results.append)

    def stored(self, *appends: Append, number: int = 1) -> None:
        """Append batches of a transaction that is confirmed with this number."""
        self.coordinator.number = number
        self.append(*appends)
        self.storage.logs.answer()
        self.coordinator.number = None

    def end(self, *, commit: bool = True, epoch: int = 0, number: int = -1, producer: int = 7) -> None:
        end_transaction(self.partition, Marker(producer, epoch, commit, number), self.ended.append)

    def finish(self, *, commit: bool = True, epoch: int = 0, number: int = -1, producer: int = 7) -> None:
        """End it, and store the marker."""
        self.end(commit=commit, epoch=epoch, number=number, producer=producer)
        self.storage.logs.answer()
        assert self.ended.pop() is None

    @property
    def ends(self) -> tuple[int, int]:
        """High watermark and last stable offset."""
        return self.partition.visible_end(UNCOMMITTED), self.partition.visible_end(COMMITTED)

    def aborted(self) -> list[tuple[int, int]]:
        return [(each.producer_id, each.first_offset) for each in self.partition.aborted(0, self.partition.log_end)]
