"""What a test reads, record by record."""

from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.source import Source
from headrace.records.batch import peek
from headrace.records.walk import records


class Basket:
    """A sink that keeps (partition, offset, value), up to a number of records."""

    def __init__(self, limit: int = 10**9) -> None:
        self.limit = limit
        self.kept: list[tuple[int, int, bytes]] = []

    def room(self) -> int:
        return 1 << 20 if len(self.kept) < self.limit else 0

    async def take(self, partition: Source, batches: list[Buffer], offset: int, not_before_ms: int | None) -> int:
        assert not_before_ms is None
        assert peek(batches[0]).base_offset <= offset
        for batch in batches:
            header = peek(batch)
            assert header.size == len(batch), "not a whole batch"
            for record in records(batch, header.base_offset):
                if record.offset < offset:
                    continue
                if len(self.kept) >= self.limit:
                    return offset
                self.kept.append((partition.index, record.offset, record.value or b""))
                offset = record.offset + 1
        return offset

    @property
    def values(self) -> list[bytes]:
        return [value for _, _, value in self.kept]

    @property
    def offsets(self) -> list[int]:
        return [offset for _, offset, _ in self.kept]
