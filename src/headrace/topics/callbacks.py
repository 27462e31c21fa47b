"""How who appends is told what became of it."""

from collections.abc import Callable

from headrace.topics.model import Appended

AppendDone = Callable[[Appended | Exception], None]
"""Gets where the batch lies, or why it is not stored."""
PlaceDone = Callable[[Exception | None], None]
"""Gets None once the batch is acknowledged, or why it is not."""
Lost = Callable[[Exception], None]
"""Told once when a log must be opened again, and why."""
