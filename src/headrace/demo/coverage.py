"""Which records the consumer group has read, each counted once however often it was delivered. Pure: no I/O."""

from headrace.demo.figures import Figure, Group, Tally
from headrace.demo.messages import Read


class Coverage:
    """What all readers together have read."""

    def __init__(self) -> None:
        self.seen = 0
        """Different records."""
        self.again = 0
        """Deliveries of records that had been read before."""
        self._seen: dict[int, bytearray] = {}
        self._tally = Tally()

    def add(self, read: Read) -> None:
        """Count the records of one delivery that are new."""
        marks = self._seen.setdefault(read.partition, bytearray())
        end = read.first + len(read.months)
        if len(marks) < end:
            marks.extend(bytes(end - len(marks)))
        new = 0
        for offset, carrier, month, delay in zip(
            range(read.first, end), read.carriers, read.months, read.delays, strict=True
        ):
            if not marks[offset]:
                marks[offset] = 1
                new += 1
                self._tally.add(carrier, month, delay)
        self.seen += new
        self.again += end - read.first - new

    def figures(self) -> dict[Group, Figure]:
        """The figures of what was read."""
        return self._tally.figures()

    def missing(self, ends: dict[int, int]) -> list[str]:
        """Where records up to the ends of the logs (offset after the last, by partition) were not read."""
        lines = []
        for partition, end in sorted(ends.items()):
            marks = self._seen.get(partition, bytearray())
            unread = end - sum(marks[:end])
            if unread:
                at = marks[:end].find(0)
                first = at if at >= 0 else len(marks)
                lines.append(f"partition {partition}: {unread:,} records were never read, the first at offset {first}")
        return lines
