"""One event's turn: collects effects and returns them in a safe order."""

from collections.abc import Hashable

from headrace.machines.deadlines import Deadlines
from headrace.machines.effects import Command, Now, Persist, Reply
from headrace.transactions.effects import Effect, Result, refusal
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Request, TimerKind
from headrace.transactions.model import DropTransaction, SaveTransaction, StoredTransaction, TransactionChange


class Turn:
    """Collects the change, commands, timers and replies of one event."""

    __slots__ = ("_change", "_commands", "_deadlines", "_replies", "now_ms", "ticks_ms")

    def __init__(self, now: Now, deadlines: Deadlines[TimerKind]) -> None:
        self.now_ms = now.wall_ms
        self.ticks_ms = now.ticks_ms
        self._deadlines = deadlines
        self._change: TransactionChange | None = None
        self._commands: list[Command] = []
        self._replies: list[Reply[Result]] = []

    def save(self, state: StoredTransaction) -> None:
        """Make a state durable before any command or reply of this turn."""
        self._change = SaveTransaction(state)

    def drop(self) -> None:
        """Remove the stored state."""
        self._change = DropTransaction()

    def command(self, command: Command) -> None:
        """Perform a command after the change is durable."""
        self._commands.append(command)

    def set_timer(self, key: TimerKind, delay_ms: int) -> None:
        """Set or move a timer, `delay_ms` from now."""
        self._deadlines.set(key, self.ticks_ms + max(delay_ms, 0))

    def cancel_timer(self, *keys: TimerKind) -> None:
        """Cancel these timers, if they are set."""
        for key in keys:
            self._deadlines.cancel(key)

    def take_timer(self, key: TimerKind) -> bool:
        """Return whether a fired timer is due, and remove it."""
        return self._deadlines.take(key, self.ticks_ms)

    def reply(self, token: Hashable, result: Result) -> None:
        """Respond to a request."""
        self._replies.append(Reply(token, result))

    def refuse(self, request: Request, error: TransactionError) -> None:
        """Reject a request."""
        self.reply(request.token, refusal(request, error))

    def effects(self) -> list[Effect]:
        """Return all effects in order: the change, commands, timers, replies."""
        persist: list[Effect] = [] if self._change is None else [Persist((self._change,))]
        return [*persist, *self._commands, *self._deadlines.effects(), *self._replies]
