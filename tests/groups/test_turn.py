from headrace.groups import timers
from headrace.groups.effects import HeartbeatResult
from headrace.groups.model import DropGroup, DropMember
from headrace.groups.timers import TimerKey
from headrace.groups.turn import Turn
from headrace.machines.deadlines import Deadlines
from headrace.machines.effects import CancelTimer, Now, Persist, Reply, SetTimer


def at(ms: int) -> Now:
    """A moment; timers go by ticks, whatever the wall clock says."""
    return Now(1_700_000_000_000 - 7 * ms, ms)


def test_changes_leave_first_and_together_then_timers_then_replies() -> None:
    turn = Turn(at(1_000), Deadlines())
    turn.reply("token", HeartbeatResult())
    turn.save(DropMember("m"))
    turn.set_timer(timers.sync(), 50)
    turn.save(DropGroup())

    assert turn.effects() == [
        Persist((DropMember("m"), DropGroup())),
        SetTimer(timers.sync(), 1_050),
        Reply("token", HeartbeatResult()),
    ]


def test_nothing_done_is_no_effect() -> None:
    assert Turn(at(0), Deadlines()).effects() == []


def test_only_the_last_word_on_a_timer_leaves() -> None:
    deadlines: Deadlines[TimerKey] = Deadlines()
    turn = Turn(at(0), deadlines)
    turn.set_timer(timers.sync(), 50)
    turn.cancel_timer(timers.sync())
    turn.set_timer(timers.sync(), 70)

    assert turn.effects() == [SetTimer(timers.sync(), 70)]
    assert deadlines == {timers.sync(): 70}


def test_a_timer_that_is_not_set_needs_no_cancelling() -> None:
    turn = Turn(at(0), Deadlines())
    turn.cancel_timer(timers.sync())

    assert turn.effects() == []


def test_cancelling_a_timer_forgets_it() -> None:
    deadlines = Deadlines({timers.sync(): 5})
    turn = Turn(at(0), deadlines)
    turn.cancel_timer(timers.sync())

    assert turn.effects() == [CancelTimer(timers.sync())]
    assert deadlines == {}


def test_a_due_timer_is_taken_once() -> None:
    deadlines = Deadlines({timers.sync(): 5})

    assert Turn(at(5), deadlines).take_timer(timers.sync())
    assert not Turn(at(5), deadlines).take_timer(timers.sync())


def test_a_timer_that_fires_early_is_set_again_for_its_deadline() -> None:
    turn = Turn(at(4), Deadlines({timers.sync(): 5}))

    assert not turn.take_timer(timers.sync())
    assert turn.effects() == [SetTimer(timers.sync(), 5)]
