"""What a native partition reads where entries may have any size. The storage is a list, or a Redis."""

from time import monotonic
from typing import cast

from headrace.broker.log_ports import NativeStorage
from headrace.broker.native.partition import NativePartition
from headrace.records.build import build
from headrace.topics.model import StoredBatch
from headrace.topics.native import Extent, NativeRead, NativeStream


class Unfit:
    """Has three entries of which the first two are not served, and remembers where each read began."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def watch(self, *_: object) -> None:
        """Nothing comes."""

    async def read(
        self, _place: NativeStream, offset: int, _limit: int, _before: int | None, *, first: int
    ) -> NativeRead:
        self.begun.append(offset)
        left = [each for each in (10, 20, 30) if each >= offset][:1]
        served = [StoredBatch(each, each + 1, bytes(build([(None, b"v", 5, ())]))) for each in left if each > 20]
        return NativeRead(
            served,
            len(left),
            more=left != [30] and bool(left),
            unfit=() if served else tuple(f"{each}-0" for each in left),
            first=left[0] if left else 0,
            following=left[0] + 1 if left else 0,
            extent=Extent(log_start=0, log_end=31, length=3, added=3),
        )


async def test_entries_that_are_not_served_are_read_once() -> None:
    """Redis copies them each time, and they may be as large as it lets them be."""
    storage = Unfit()
    extent = Extent(log_start=0, log_end=31, length=3, added=3)
    partition = NativePartition("t", 0, NativeStream("s", 0), extent, cast("NativeStorage", storage))
    for offset, begun in ((0, [0, 11, 21]), (0, [21]), (15, [21]), (20, [21]), (21, [21]), (31, [31])):
        storage.begun.clear()
        found = await partition.read_range(offset, 1 << 20)
        assert [each.base_offset for each in found] == [30][: offset <= 30]
        assert storage.begun == begun
    assert partition.unfit == 2
    partition.learn(Extent(log_start=0, log_end=31, length=1, added=1, asked=monotonic()))
    storage.begun.clear()
    await partition.read_range(0, 1 << 20)
    assert storage.begun == [0, 11, 21], "another stream has that name"
