"""Who is told of record batches on their way, where the server traces them; nobody is by default."""

from collections.abc import Sequence
from typing import Protocol

from headrace.broker.partition.cache import Buffer
from headrace.topics.model import AppendDone


class BatchTracer(Protocol):
    """Continues the traces that records belong to."""

    def appending(self, topic: str, partition: int, batch: Buffer, done: AppendDone) -> AppendDone:
        """A batch is about to be appended; what is to be called with its place in place of `done`."""

    def handed_out(self, topic: str, partition: int, batches: Sequence[Buffer]) -> None:
        """Batches are on their way to a client."""
