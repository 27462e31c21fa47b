"""The order in which large requests are read."""

import pytest

from headrace.kafka.server.memory_pool import MOST_OPENED, MemoryPool


class Request:
    """A request under way."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.large = False
        self.parked = 0


class Sender:
    """A connection, and the number of its wake-ups."""

    def __init__(self) -> None:
        self.told = 0

    def resume(self) -> None:
        self.told += 1


class Full:
    """Memory with the maximum of large requests, and three more senders that must wait."""

    def __init__(self) -> None:
        self.memory = MemoryPool(1 << 20)
        self.under_way = Request()
        for request in (self.under_way, *(Request() for _ in range(MOST_OPENED - 1))):
            self.memory.open(request)
        self.senders = [Sender() for _ in range(3)]
        assert not any(self.memory.may_open(sender) for sender in self.senders)

    def settle_one(self) -> None:
        self.memory.settle(self.under_way)

    @property
    def told(self) -> list[int]:
        """Return the number of wake-ups of each connection."""
        return [sender.told for sender in self.senders]


@pytest.fixture
def full() -> Full:
    return Full()


def test_so_many_are_read_at_a_time_and_the_others_in_turn(full: Full) -> None:
    full.settle_one()
    full.settle_one()  # once is enough
    assert full.told == [1, 0, 0]
    assert full.memory.may_open(full.senders[0])


def test_who_is_gone_leaves_its_turn_to_the_next(full: Full) -> None:
    first, second, _ = full.senders
    full.memory.forget(second)
    full.settle_one()
    # It was woken, and is gone before it could continue.
    full.memory.forget(first)
    assert full.told == [1, 0, 1]


def test_a_woken_connection_keeps_its_place_until_its_turn(full: Full) -> None:
    first, second, third = full.senders
    full.settle_one()
    assert not full.memory.may_open(Sender())
    assert not full.memory.may_open(third)
    assert not full.memory.may_open(second)
    assert full.memory.may_open(first)


def test_who_cannot_use_its_turn_leaves_it_to_the_next(full: Full) -> None:
    first, second, _ = full.senders
    full.settle_one()
    # It has been muted in the meantime: it has nothing to read for now.
    full.memory.had_turn(first, waits=False)
    assert full.told == [1, 1, 0]
    assert full.memory.may_open(second)


def test_a_turn_of_which_nothing_came_is_for_the_next(full: Full) -> None:
    first, *_ = full.senders
    full.settle_one()
    assert full.memory.may_open(first)
    # What it read was not served as a large one: its client had to log in first.
    full.memory.had_turn(first, waits=False)
    assert full.told == [1, 1, 0]


def test_one_that_waits_for_something_else_makes_room_and_is_counted_until_it_is_answered() -> None:
    memory = MemoryPool(1_000)
    memory.add(400)
    one, other = Request(400), Request(1)
    for request in (one, other):
        memory.open(request)
    assert memory.park(one, 100)
    assert memory.used == 500
    assert one.size == 500
    assert not memory.park(other, 0)
    for request in (one, other):
        memory.unpark(request)
        memory.unpark(request)
        memory.settle(request)
    assert memory.parked == 0
    waiting = Sender()
    assert memory.may_open(waiting)
