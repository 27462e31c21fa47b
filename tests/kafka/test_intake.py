"""Who may have a large request read, of many who want to."""

from headrace.kafka.intake import MOST_OPENED, RequestMemory


class Request:
    """A request under way."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.large = False
        self.parked = 0


class Sender:
    """A connection, and how often it was told that it may go on."""

    def __init__(self) -> None:
        self.told = 0

    def memory_free(self) -> None:
        raise AssertionError("nobody waits for memory")

    def may_open(self) -> None:
        self.told += 1


def opened(memory: RequestMemory) -> Request:
    request = Request()
    memory.open(request)
    return request


def test_so_many_are_read_at_a_time_and_the_others_in_turn() -> None:
    memory = RequestMemory(1 << 20)
    senders = [Sender() for _ in range(3)]
    under_way = [opened(memory) for _ in range(MOST_OPENED)]
    assert not any(memory.may_open(sender) for sender in senders)
    memory.settle(under_way[0])
    memory.settle(under_way[0])  # once is enough
    assert [sender.told for sender in senders] == [1, 0, 0]
    assert memory.may_open(senders[0])


def test_who_is_gone_leaves_its_turn_to_the_next() -> None:
    memory = RequestMemory(1 << 20)
    first, second, third = (Sender() for _ in range(3))
    under_way = [opened(memory) for _ in range(MOST_OPENED)]
    assert not any(memory.may_open(sender) for sender in (first, second, third))
    memory.forget(second)
    memory.settle(under_way[0])
    # It was told, and is gone before it could go on.
    memory.forget(first)
    assert [first.told, second.told, third.told] == [1, 0, 1]


def test_who_was_told_keeps_its_place_until_it_has_had_its_turn() -> None:
    memory = RequestMemory(1 << 20)
    first, second, newcomer = (Sender() for _ in range(3))
    under_way = [opened(memory) for _ in range(MOST_OPENED)]
    assert not memory.may_open(first)
    assert not memory.may_open(second)
    memory.settle(under_way[0])
    assert not memory.may_open(newcomer)
    assert not memory.may_open(second)
    assert memory.may_open(first)


def test_who_cannot_use_its_turn_leaves_it_to_the_next() -> None:
    memory = RequestMemory(1 << 20)
    first, second = Sender(), Sender()
    under_way = [opened(memory) for _ in range(MOST_OPENED)]
    assert not memory.may_open(first)
    assert not memory.may_open(second)
    memory.settle(under_way[0])
    # Meanwhile it was muted: it has nothing to read for now.
    memory.had_turn(first, waits=False)
    assert second.told == 1
    assert memory.may_open(second)


def test_a_turn_of_which_nothing_came_is_for_the_next() -> None:
    memory = RequestMemory(1 << 20)
    first, second = Sender(), Sender()
    under_way = [opened(memory) for _ in range(MOST_OPENED)]
    assert not memory.may_open(first)
    assert not memory.may_open(second)
    memory.settle(under_way[0])
    assert memory.may_open(first)
    # What it read was not served as a large one: its client had to log in first.
    memory.had_turn(first, waits=False)
    assert second.told == 1


def test_one_that_waits_for_something_else_makes_room_and_is_counted_until_it_is_answered() -> None:
    memory = RequestMemory(1_000)
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
