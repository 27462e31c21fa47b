"""What is left of a log whose topic was deleted, for what was under way in it then."""

from typing import TYPE_CHECKING

import msgspec

from headrace.topics.callbacks import AppendDone
from headrace.topics.model import Append, Appended

if TYPE_CHECKING:
    from headrace.broker.partition.remote import ColdPartition


class EndedLog(msgspec.Struct):
    """Stands in for the log where its parts ask it.

    So the parts do not hold the log, which holds them: its memory is free as soon as nobody has it any more. The
    collector would find it when it walks all that there is, which is once in 100 million new objects.
    """

    topic: str
    index: int
    stream: str
    local_start: int
    log_end: int
    cold: "ColdPartition | None" = None
    deleted: bool = True
    is_led: bool = True
    is_writable: bool = False
    shown: int | None = None

    def finish_append(self, append: Append, placed: Appended, done: AppendDone, error: Exception | None) -> None:
        """Tell whoever appended a batch how that went; nobody can read it."""
        done(error or placed)

    def lost(self, error: Exception) -> None:
        """It is not opened anew."""

    def save_soon(self) -> None:
        """Nothing is written down any more."""
