from headrace.machines.deadlines import Deadlines
from headrace.machines.effects import CancelTimer, SetTimer


def test_only_the_last_change_of_a_timer_leaves() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 50)
    deadlines.cancel("a")
    deadlines.set("a", 70)
    deadlines.cancel("never set")

    assert deadlines.effects() == [SetTimer("a", 70)]
    assert deadlines.effects() == []
    assert "a" in deadlines


def test_a_timer_that_was_canceled_while_its_event_waited_is_not_due() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 50)
    deadlines.cancel_all()

    assert not deadlines.take("a", 60)
    assert deadlines.effects() == [CancelTimer("a")]


def test_a_moved_timer_is_set_again() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 80)
    deadlines.effects()

    assert not deadlines.take("a", 60)
    assert deadlines.effects() == [SetTimer("a", 80)]
    assert deadlines.take("a", 80)
    assert not deadlines.take("a", 90)
