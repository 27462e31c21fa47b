"""A transactional ID with storage, timers and producer IDs on a manual clock."""

from collections.abc import Hashable
from itertools import count
from typing import Any
from uuid import UUID

from headrace.machines.effects import CancelTimer, Now, Persist, Reply, SetTimer
from headrace.transactions.effects import Effect, EndParticipants, NewProducerId
from headrace.transactions.events import (
    Add,
    End,
    Ended,
    Event,
    Init,
    Lookup,
    ProducerIdAllocated,
    Request,
    TimerFired,
    TimerKind,
    Verify,
)
from headrace.transactions.model import (
    NEW,
    Participant,
    PartitionId,
    StoredTransaction,
    TransactionSettings,
    TransactionState,
)
from headrace.transactions.snapshot import Snapshot
from headrace.transactions.transaction import Transaction

TOPIC = UUID(int=7)
P0, P1 = PartitionId(TOPIC, 0), PartitionId(TOPIC, 1)
WALL_MS = 1_700_000_000_000


class TransactionContext:
    """One machine. `calls` are the participants' calls that have no response yet."""

    def __init__(self, stored: StoredTransaction = NEW, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.ticks_ms = 1_000_000
        self.storage = Snapshot(stored)
        self.writes: list[StoredTransaction] = []
        self.calls: list[EndParticipants] = []
        self.replies: dict[Hashable, Any] = {}
        self.timers: dict[TimerKind, int] = {}
        self.effects: list[Effect] = []
        self.allocates = True
        """Whether producer IDs are allocated at once."""
        self.wanted = 0
        self._ids = count(1_000)
        self._tokens = count()
        self.restart()

    @property
    def now(self) -> Now:
        return Now(WALL_MS + self.ticks_ms, self.ticks_ms)

    @property
    def current(self) -> StoredTransaction:
        return self.machine.current

    @property
    def state(self) -> TransactionState:
        return self.machine.current.state

    def restart(self) -> None:
        """Begin again from storage, as after a crash."""
        self.timers.clear()
        self.calls.clear()
        self.machine, effects = Transaction.restore("id", self.settings, self.storage.stored, self.now)
        self.carry_out(effects)

    def carry_out(self, effects: list[Effect]) -> None:
        self.effects = effects
        for effect in effects:
            match effect:
                case Persist(changes):
                    self.storage.apply(changes)
                    self.writes.append(self.storage.stored)
                case SetTimer(key, deadline_ms):
                    self.timers[key] = deadline_ms
                case CancelTimer(key):
                    self.timers.pop(key, None)
                case Reply(token, result):
                    assert token not in self.replies, "a request got two replies"
                    self.replies[token] = result
                case EndParticipants():
                    self.calls.append(effect)
                case NewProducerId():
                    self.wanted += 1
        if self.wanted and self.allocates:
            self.wanted -= 1
            self.post(ProducerIdAllocated(next(self._ids)))

    def post(self, event: Event) -> None:
        self.carry_out(self.machine.handle(event, self.now))

    def ask(self, event: Request) -> Any:
        """Send a request. None: it waits."""
        self.post(event)
        return self.replies.get(event.token)

    def token(self) -> int:
        return next(self._tokens)

    def init(self, producer_id: int = -1, epoch: int = -1, timeout_ms: int = 60_000) -> Any:
        return self.ask(Init(token=self.token(), timeout_ms=timeout_ms, producer_id=producer_id, epoch=epoch))

    def add(self, *participants: Participant, version: int = 1, epoch: int | None = None, copies: int = 1) -> Any:
        return self.ask(
            Add(
                token=self.token(),
                producer_id=self.current.producer_id,
                epoch=self.current.producer_epoch if epoch is None else epoch,
                participants=participants or (P0,),
                version=version,
                copies=copies,
            )
        )

    def verify(self, *participants: Participant, epoch: int | None = None) -> Any:
        return self.ask(
            Verify(
                token=self.token(),
                producer_id=self.current.producer_id,
                epoch=self.current.producer_epoch if epoch is None else epoch,
                participants=participants or (P0,),
            )
        )

    def lookup(self, participant: Participant = P0, epoch: int = 0) -> bool:
        looked = self.ask(
            Lookup(token=self.token(), producer_id=self.current.producer_id, epoch=epoch, participant=participant)
        )
        return bool(looked.open)

    def end(
        self, commit: bool = True, version: int = 1, epoch: int | None = None, producer_id: int | None = None
    ) -> Any:
        return self.ask(
            End(
                token=self.token(),
                producer_id=self.current.producer_id if producer_id is None else producer_id,
                epoch=self.current.producer_epoch if epoch is None else epoch,
                commit=commit,
                version=version,
            )
        )

    def ended(self, call: EndParticipants | None = None, *participants: Participant) -> None:
        """Respond to a call, by default to the oldest one and for all of its participants."""
        call = call or self.calls.pop(0)
        self.post(Ended(call.number, participants or call.participants))

    def sleep(self, ms: int) -> None:
        """Let time pass, with all timers."""
        until = self.ticks_ms + ms
        while self.timers and min(self.timers.values()) <= until:
            key = min(self.timers, key=lambda each: self.timers[each])
            self.ticks_ms = max(self.ticks_ms, self.timers.pop(key))
            self.post(TimerFired(key))
        self.ticks_ms = until


def stored_at(state: TransactionState, epoch: int = 5, version: int = 1, **fields: Any) -> StoredTransaction:
    """A stored transactional ID of producer 9 in a state."""
    found = StoredTransaction(
        state=state, producer_id=9, producer_epoch=epoch, number=3, version=version, timeout_ms=60_000,
        updated_ms=WALL_MS, **fields,
    )  # fmt: skip
    return found.with_participants((P0,)) if state.open else found
