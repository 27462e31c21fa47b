"""A transactional ID, as a pure state machine.

Two writes precede each outcome: that of the participants, and that of the decision. The complete state follows from the
decision, so it is written with the next transaction, or when the ID is idle.
"""

from collections.abc import Hashable
from typing import Final

from msgspec.structs import replace

from headrace.machines.deadlines import Deadlines
from headrace.machines.effects import Now
from headrace.transactions.description import TransactionDescription, described
from headrace.transactions.effects import (
    AddResult,
    Effect,
    EndParticipants,
    EndResult,
    InitResult,
    LookupResult,
    NewProducerId,
    VerifyResult,
)
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import (
    Add,
    End,
    Ended,
    Event,
    Init,
    Lookup,
    ProducerIdAllocated,
    TimerFired,
    TimerKind,
    TopicGone,
    Verify,
)
from headrace.transactions.model import (
    LAST_EPOCH,
    NEW,
    NO_EPOCH,
    NO_PRODUCER_ID,
    TV2,
    Participant,
    PartitionId,
    StoredTransaction,
    TransactionSettings,
    TransactionState,
)
from headrace.transactions.rules import EndStep, InitStep, on_end, on_init, on_use
from headrace.transactions.turn import Turn

_LONGEST_MS: Final = 86_400_000
"""Maximum delay of the expiry timer, because the wall clock may be set."""
_SHORTEST_MS: Final = 60_000
"""Minimum delay, so that an expired ID survives the return of its producer after a long outage."""
_RETRIES: Final = 16
"""Failed calls of participants after which the delay no longer doubles."""


class Transaction:
    """One transactional ID: `handle` returns effects in the required order."""

    def __init__(self, name: str, settings: TransactionSettings, stored: StoredTransaction = NEW) -> None:
        self.name = name
        self.current = stored
        self._settings = settings
        self._participants: dict[Participant, None] = dict.fromkeys(stored.participants())
        """Participants of the transaction. Once it is prepared, those that have not ended."""
        self._deadlines: Deadlines[TimerKind] = Deadlines()
        self.ends_ms = 0
        """Deadline (ticks) of the transaction that began last here."""
        self._ending: Hashable | None = None
        """Token of the EndTxn that waits for participants."""
        self._calls = 0
        """Calls of participants since the outcome was decided."""
        self._pending: Init | End | TimerFired | None = None
        """Event that waits for a producer ID."""
        self._spare: int | None = None
        """Producer ID for the event that waited."""

    @classmethod
    def restore(
        cls,
        name: str,
        settings: TransactionSettings,
        stored: StoredTransaction,
        now: Now,
        before: "Transaction | None" = None,
    ) -> "tuple[Transaction, list[Effect]]":
        """Return the stored transaction and its first effects.

        A decided transaction ends its participants at once. An ongoing one has its whole time again, except after a
        failed write of `before`.
        """
        machine = cls(name, settings, stored)
        turn = Turn(now, machine._deadlines)
        if stored.state is TransactionState.ONGOING:
            continues = before is not None and before.current.number == stored.number
            machine.ends_ms = before.ends_ms if before and continues else now.ticks_ms + stored.timeout_ms
            turn.set_timer(TimerKind.TRANSACTION, machine.ends_ms - now.ticks_ms)
        elif stored.state.prepared:
            machine._end_participants(turn)
        if not machine.is_new:
            machine._watch_expiry(turn)
        return machine, turn.effects()

    def handle(self, event: Event, now: Now) -> list[Effect]:
        """Handle one event and return ordered effects."""
        turn = Turn(now, self._deadlines)
        match event:
            case Init() | End() | Add() if self._pending is not None:
                # Before other checks: the producer may use an ID that is not in the state yet (KAFKA-18464).
                turn.refuse(event, TransactionError.CONCURRENT_TRANSACTIONS)
            case Init():
                self._init(event, turn)
            case Add():
                self._add(event, turn)
            case Verify():
                self._verify(event, turn)
            case Lookup():
                turn.reply(event.token, LookupResult(open=self._may_end(event)))
            case End():
                self._end(event, turn)
            case Ended():
                self._ended(event, turn)
            case TopicGone():
                self._topic_gone(event, turn)
            case ProducerIdAllocated():
                self._allocated(event, turn)
            case TimerFired():
                if turn.take_timer(event.key):
                    self._fired(event, turn)
        return turn.effects()

    # requests

    def _init(self, event: Init, turn: Turn) -> None:
        match on_init(self.current, event, self._settings.max_timeout_ms):
            case TransactionError() as error:
                turn.refuse(event, error)
            case InitStep.ABORT:
                if self._abort(event, turn, event.epoch):
                    # No client receives this epoch. The repeated request bumps it again.
                    turn.refuse(event, TransactionError.CONCURRENT_TRANSACTIONS)
            case InitStep.REPEAT:
                self._initialized(event, self.current, turn)
            case InitStep.BUMP:
                epoch = self.current.producer_epoch
                last = NO_EPOCH if event.epoch == NO_EPOCH else epoch
                self._initialized(event, replace(self.current, producer_epoch=epoch + 1, last_epoch=last), turn)
            case InitStep.ROTATE:
                producer_id = self._take_producer_id(event, turn)
                if producer_id is not None:
                    previous = self.current.producer_id if event.epoch == NO_EPOCH else event.producer_id
                    self._initialized(event, self._rotated(producer_id, previous, event.epoch), turn)

    def _rotated(self, producer_id: int, previous: int, last_epoch: int) -> StoredTransaction:
        return replace(
            self.current,
            producer_id=producer_id,
            producer_epoch=0,
            previous_producer_id=previous,
            last_epoch=last_epoch,
        )

    def _initialized(self, event: Init, state: StoredTransaction, turn: Turn) -> None:
        self.current = replace(state, state=TransactionState.EMPTY, timeout_ms=event.timeout_ms, fenced=False)
        self._save(turn)
        self._watch_expiry(turn)
        turn.reply(event.token, InitResult(producer_id=self.current.producer_id, epoch=self.current.producer_epoch))

    def _add(self, event: Add, turn: Turn) -> None:
        error = on_use(self.current, event)
        if error is not None:
            turn.refuse(event, error)
            return
        begins = self.current.state is not TransactionState.ONGOING
        added = [each for each in event.participants if each not in self._participants]
        if not begins and not added:
            turn.reply(event.token, AddResult(number=self.current.number))
            return
        if len(self._participants) + len(added) > self._settings.max_participants:
            turn.refuse(event, TransactionError.POLICY_VIOLATION)
            return
        self._participants.update(dict.fromkeys(added))
        state = replace(self.current, version=event.version, copies=max(self.current.copies, event.copies))
        if begins:
            state = replace(
                state,
                state=TransactionState.ONGOING,
                number=state.number + 1,
                started_ms=turn.now_ms,
                copies=event.copies,
                fenced=False,
            )
            turn.cancel_timer(TimerKind.COMPLETE)
            self.ends_ms = turn.ticks_ms + state.timeout_ms
            turn.set_timer(TimerKind.TRANSACTION, state.timeout_ms)
        self.current = state.with_participants(self._participants)
        self._save(turn)
        turn.reply(event.token, AddResult(number=state.number))

    def _verify(self, event: Verify, turn: Turn) -> None:
        error = on_use(self.current, event)
        if error is not None:
            turn.refuse(event, error)
            return
        ongoing = self.current.state is TransactionState.ONGOING
        missing = frozenset(each for each in event.participants if not ongoing or each not in self._participants)
        turn.reply(event.token, VerifyResult(missing=missing, number=self.current.number))

    def _may_end(self, event: Lookup) -> bool:
        current = self.current
        return (
            current.state.open
            and event.producer_id == current.producer_id
            and event.epoch <= current.producer_epoch
            and event.participant in self._participants
        )

    def _end(self, event: End, turn: Turn) -> None:
        match on_end(self.current, event):
            case TransactionError() as error:
                turn.refuse(event, error)
            case EndStep.REPEAT:
                self._reply_ended(event.token, turn)
            case EndStep.PREPARE:
                if self._prepare(event, turn, commit=event.commit, version=event.version):
                    if self.current.state.prepared:
                        self._ending = event.token
                        turn.set_timer(TimerKind.RESPONSE, self._settings.response_ms)
                    else:
                        self._reply_ended(event.token, turn)
            case EndStep.EMPTY_ABORT:
                self._abort_nothing(event, turn)

    def _abort_nothing(self, event: End, turn: Turn) -> None:
        current = self.current
        if current.producer_epoch >= LAST_EPOCH:
            producer_id = self._take_producer_id(event, turn)
            if producer_id is None:
                return
            state = self._rotated(producer_id, current.producer_id, LAST_EPOCH)
        else:
            state = replace(current, producer_epoch=current.producer_epoch + 1, last_epoch=current.producer_epoch)
        # PrepareAbort would end no participants.
        self.current = replace(state, state=TransactionState.COMPLETE_ABORT, version=event.version, fenced=False)
        self._save(turn)
        self._reply_ended(event.token, turn)

    def _reply_ended(self, token: Hashable, turn: Turn) -> None:
        producer_id, epoch = self.current.producer_after
        turn.reply(token, EndResult(producer_id=producer_id, epoch=epoch))

    # the outcome

    def _abort(self, event: Init | TimerFired, turn: Turn, last_epoch: int) -> bool:
        """Fence the producer and abort its transaction. Return False if that waits for a producer ID."""
        return self._prepare(
            event, turn, commit=False, version=self.current.version, fenced=True, last_epoch=last_epoch
        )

    def _prepare(
        self,
        event: Init | End | TimerFired,
        turn: Turn,
        *,
        commit: bool,
        version: int,
        fenced: bool = False,
        last_epoch: int = NO_EPOCH,
    ) -> bool:
        """Decide the outcome. One bump serves as fence and as the second protocol's new epoch (KAFKA-19367)."""
        current = self.current
        epoch = current.producer_epoch
        bumps = fenced or version >= TV2
        next_producer_id = NO_PRODUCER_ID
        if version >= TV2 and epoch >= LAST_EPOCH:
            taken = self._take_producer_id(event, turn)
            if taken is None:
                return False
            next_producer_id = taken
        self.current = replace(
            current,
            state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            producer_epoch=epoch + 1 if bumps else epoch,
            last_epoch=last_epoch if fenced else epoch if bumps else current.last_epoch,
            next_producer_id=next_producer_id,
            version=version,
            fenced=fenced,
        )
        self._calls = 0
        turn.cancel_timer(TimerKind.TRANSACTION)
        self._save(turn)
        self._end_participants(turn)
        return True

    def _end_participants(self, turn: Turn) -> None:
        """Call those that have not ended. Only after the decision is durable."""
        call = self.call_of_participants()
        if call is None:
            self._complete(turn)
        else:
            turn.command(call)

    def call_of_participants(self) -> EndParticipants | None:
        """Return the call that ends a decided transaction where it has not ended; None: it has everywhere."""
        current = self.current
        if not self._participants or not current.state.prepared:
            return None
        return EndParticipants(
            producer_id=current.producer_id,
            epoch=current.producer_epoch,
            commit=current.state.commits,
            number=current.number,
            copies=current.copies,
            version=current.version,
            participants=tuple(self._participants),
        )

    def _ended(self, event: Ended, turn: Turn) -> None:
        if not self.current.state.prepared or event.number != self.current.number:
            return
        for each in event.participants:
            self._participants.pop(each, None)
        if not self._participants:
            self._complete(turn)
            return
        delay_ms = self._settings.retry_ms << min(self._calls, _RETRIES)
        self._calls += 1
        turn.set_timer(TimerKind.RETRY, min(delay_ms, self._settings.max_retry_ms))

    def _complete(self, turn: Turn) -> None:
        current = self.current
        producer_id, epoch = current.producer_after
        rotated = producer_id != current.producer_id
        self.current = replace(
            current,
            state=TransactionState.COMPLETE_COMMIT if current.state.commits else TransactionState.COMPLETE_ABORT,
            producer_id=producer_id,
            producer_epoch=epoch,
            previous_producer_id=current.producer_id if rotated else current.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
            started_ms=-1,
            updated_ms=turn.now_ms,
            partitions={},
            groups=(),
        )
        turn.cancel_timer(TimerKind.RESPONSE, TimerKind.RETRY)
        turn.set_timer(TimerKind.COMPLETE, self._settings.complete_ms)
        self._respond(turn)

    def _respond(self, turn: Turn) -> None:
        token, self._ending = self._ending, None
        if token is not None:
            self._reply_ended(token, turn)

    def _topic_gone(self, event: TopicGone, turn: Turn) -> None:
        gone = [
            each for each in self._participants if isinstance(each, PartitionId) and each.topic_id == event.topic_id
        ]
        for each in gone:
            del self._participants[each]
        if gone and self.current.state.prepared and not self._participants:
            self._complete(turn)

    # producer IDs

    def _take_producer_id(self, event: Init | End | TimerFired, turn: Turn) -> int | None:
        """Return a new producer ID. None: the event is handled again when it is allocated."""
        taken, self._spare = self._spare, None
        if taken is None:
            self._pending = event
            turn.command(NewProducerId())
        return taken

    def _allocated(self, event: ProducerIdAllocated, turn: Turn) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        if event.producer_id is None:
            if isinstance(pending, TimerFired):
                turn.set_timer(pending.key, self._settings.max_retry_ms)
            else:
                turn.refuse(pending, TransactionError.COORDINATOR_NOT_AVAILABLE)
            return
        self._spare = event.producer_id
        match pending:
            case Init():
                self._init(pending, turn)
            case End():
                self._end(pending, turn)
            case TimerFired():
                self._fired(pending, turn)
        self._spare = None

    # time

    def _fired(self, event: TimerFired, turn: Turn) -> None:
        match event.key:
            case TimerKind.TRANSACTION:
                self._time_out(event, turn)
            case TimerKind.RESPONSE:
                self._respond(turn)
            case TimerKind.RETRY:
                if self.current.state.prepared:
                    self._end_participants(turn)
            case TimerKind.COMPLETE:
                if not self.current.state.open:
                    self._save(turn)
            case TimerKind.EXPIRY:
                self._expire(turn)

    def _time_out(self, event: TimerFired, turn: Turn) -> None:
        if self.current.state is not TransactionState.ONGOING:
            return
        if self._pending is not None:
            # An EndTxn or InitProducerId waits for a producer ID.
            turn.set_timer(TimerKind.TRANSACTION, self._settings.max_retry_ms)
            return
        # Its client may continue with the second protocol. It aborts, and gets the new epoch.
        current = self.current
        self._abort(event, turn, current.producer_epoch if current.version >= TV2 else NO_EPOCH)

    def _expire(self, turn: Turn) -> None:
        unused_ms = turn.now_ms - self.current.updated_ms
        if self.current.state.open or self._pending is not None or unused_ms < self._settings.expiration_ms:
            self._watch_expiry(turn)
            return
        self.current = NEW
        turn.cancel_timer(*TimerKind)
        turn.drop()

    def _watch_expiry(self, turn: Turn) -> None:
        left_ms = self._settings.expiration_ms - (turn.now_ms - self.current.updated_ms)
        least_ms = min(_SHORTEST_MS, self._settings.expiration_ms)
        turn.set_timer(TimerKind.EXPIRY, min(max(left_ms, least_ms), _LONGEST_MS))

    def _save(self, turn: Turn) -> None:
        self.current = replace(self.current, updated_ms=turn.now_ms)
        turn.cancel_timer(TimerKind.COMPLETE)
        turn.save(self.current)

    # what others see

    @property
    def is_new(self) -> bool:
        """Whether no producer has been initialized."""
        return self.current.producer_id == NO_PRODUCER_ID

    def describe(self) -> TransactionDescription:
        """Return the description for tools."""
        return described(self.name, self.current)
