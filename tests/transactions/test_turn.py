from tests.harness.transactions import stored_at

from headrace.machines.deadlines import Deadlines
from headrace.machines.effects import Now, Persist, Reply, SetTimer
from headrace.transactions.effects import EndResult, NewProducerId
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import End, TimerKind
from headrace.transactions.model import DropTransaction, SaveTransaction, TransactionState
from headrace.transactions.turn import Turn

END = End(token="t", producer_id=1, epoch=1, commit=True)


def test_the_change_leaves_first_then_commands_timers_and_replies() -> None:
    turn, stored = Turn(Now(5, 1_000), Deadlines()), stored_at(TransactionState.EMPTY)
    turn.refuse(END, TransactionError.PRODUCER_FENCED)
    turn.set_timer(TimerKind.RETRY, 50)
    turn.command(NewProducerId())
    turn.save(stored)

    assert turn.effects() == [
        Persist((SaveTransaction(stored),)),
        NewProducerId(),
        SetTimer(TimerKind.RETRY, 1_050),
        Reply("t", EndResult(error=TransactionError.PRODUCER_FENCED)),
    ]


def test_the_last_state_of_a_turn_is_the_one_that_is_stored() -> None:
    turn = Turn(Now(5, 1_000), Deadlines())
    turn.save(stored_at(TransactionState.EMPTY))
    turn.drop()

    assert turn.effects() == [Persist((DropTransaction(),))]
