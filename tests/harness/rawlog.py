"""A log's stream and the keys next to it, with an owner's scripts and appends, without a server."""

from typing import Any, NamedTuple

from headrace.records.accelerator import stamp
from headrace.records.build import build
from headrace.storage.layout import entries, partition
from headrace.storage.layout.keys import clean_of, foreign_of, producers_of, state_of
from headrace.storage.layout.scripts import script
from headrace.topics.leader_epochs import EpochRow
from headrace.topics.model import StoredBatch


class Told(NamedTuple):
    """The answer of the script `open`."""

    term: int
    log_start: int
    log_end: int
    entries: int
    newest: int
    size: int
    snapshot: int
    rows: tuple[EpochRow, ...]
    log_id: bytes
    set_aside: int
    missing: int


def made(base_offset: int, epoch: int, span: int = 1, *, value: bytes = b"value", time: int = 5) -> bytes:
    """A batch with `span` records, stamped."""
    batch = bytearray(build([(None, value, time, ())] * span))
    stamp(batch, base_offset, epoch)
    return bytes(batch)


class RawLog:
    """One log; `link` is a client that does not decode."""

    def __init__(self, link: Any, stream: str = "headrace:t:0") -> None:
        self.link = link
        self.stream = stream
        self.state, self.producers, self.foreign = state_of(stream), producers_of(stream), foreign_of(stream)
        self.clean = clean_of(stream)

    def run(self, name: str, keys: list[str], *arguments: Any) -> Any:
        """Run a script. Raises redis.ResponseError."""
        return self.link.eval(script(name).text, len(keys), *keys, *arguments)

    def open(
        self, *, view: int = 1, least: int = 0, create: bool = True, log_id: str = "id", resume: bool = False
    ) -> Told:
        """Raise the term."""
        mode, again = "create" if create else "", "resume" if resume else ""
        answer = self.run("open", [self.stream, self.state, self.foreign, self.clean], view, least, mode, log_id, again)
        term, start, end, length, newest, size, snapshot, rows, found, set_aside, missing, *_ = answer
        return Told(
            int(term), int(start), int(end), length, int(newest), int(size), int(snapshot), partition.epochs(rows).rows,
            found, set_aside, int(missing),
        )  # fmt: skip

    def put(self, term: int, base_offset: int, span: int = 1, *, time: int = 5, size: int = 0) -> bytes | None:
        """Append as an owner does; the entry's id, None where the stream is gone. Raises redis.ResponseError."""
        batch = made(base_offset, term, span, time=time)
        fields = {"b": batch, "t": time, "s": size or (base_offset + span) * 100}
        added: bytes | None = self.link.xadd(self.stream, fields, id=f"{term}-{base_offset + span}", nomkstream=True)
        return added

    def fill(self, count: int, span: int = 1, *, term: int = 0) -> Told:
        """Open it and append batches."""
        told = self.open()
        for number in range(count):
            self.put(told.term, told.log_end + number * span, span)
        return told

    def save(self, term: int, offset: int, *pairs: Any) -> Any:
        """Write a snapshot."""
        return self.run("snapshot", [self.state, self.producers], term, offset, "", *pairs)

    def trim(self, term: int, *, oldest: Any = "", most: Any = "", before: Any = "") -> tuple[int, int]:
        """Retention: log start and entries left."""
        start, left, _ = self.run("trim", [self.stream, self.state, self.clean], term, oldest, most, before)
        return int(start), left

    def restore(self, term: int, *batches: tuple[int, int], finish: bool = True) -> tuple[int, tuple[EpochRow, ...]]:
        """Store (base offset, span)s again: entries in the stream and rows."""
        arguments: list[Any] = []
        for base, span in batches:
            arguments += [f"{term}-{base + span}", made(base, term, span), 5, (base + span) * 100]
        length, rows = self.run("restore", [self.stream, self.state], term, "finish" if finish else "", *arguments)
        return length, partition.epochs(rows).rows

    def find(self, wanted: int | str) -> int | None:
        """Base offset of the batch that the script `find_timestamp` finds."""
        entry, _ = self.run("find_timestamp", [self.stream, self.state, self.clean], wanted)
        return entries.decode([entry])[0].base_offset if entry else None

    def read(self, offset: int, count: int = 1) -> list[StoredBatch]:
        """As a reader does that knows the rows."""
        epochs = partition.epochs(self.link.hget(self.state, "l"))
        first = entries.range_start(epochs, offset)
        answer = self.link.xrange(self.stream, first, count=count)
        return entries.decode(
            [(entry_id, [part for pair in fields.items() for part in pair]) for entry_id, fields in answer]
        )

    def offsets(self) -> list[tuple[int, int]]:
        """(base offset, next offset) of everything in the stream."""
        return [(each.base_offset, each.next_offset) for each in self.read(0, 1_000_000)]
