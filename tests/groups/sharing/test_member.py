"""A member of a share group: what its requests change, and what is stored of it."""

from headrace.groups.sharing.events import ShareHeartbeat
from headrace.groups.sharing.member import Sharer, size_of


def request(epoch: int = 0, *topics: str, rack: str | None = None, client: str = "c") -> ShareHeartbeat:
    return ShareHeartbeat(
        token=1, member_id="m", member_epoch=epoch, topics=topics or None, rack_id=rack, client_id=client
    )


def test_only_a_changed_subscription_is_a_change() -> None:
    member = Sharer.joining(request(0, "a"))
    assert member.update(request(0, "b", "a"))
    assert not member.update(request(1, "a", "b", rack="r"))
    assert not member.update(request(1))
    assert member.topics == {"a", "b"}
    assert member.rack_id == "r"


def test_a_client_that_joins_again_may_be_another_program() -> None:
    member = Sharer.joining(request(0, "a"))
    member.update(request(1, client="not this"))
    assert member.client_id == "c"
    member.update(request(0, "a", client="new"))
    assert member.client_id == "new"


def test_it_comes_back_as_it_was_stored() -> None:
    member = Sharer.joining(request(0, "a"))
    member.update(request(0, "a", "b"))
    member.move_to(3, {"a": (0, 1)})
    member.move_to(4, {"a": (1,)})
    stored = member.stored
    assert (stored.epoch, stored.previous_epoch, stored.assigned) == (4, 3, {"a": (1,)})
    assert Sharer(stored).stored == stored
    assert stored.field == "sharer:m"


def test_its_size_counts_names() -> None:
    member = Sharer.joining(request(0, "a"))
    before = member.size
    member.update(request(0, "a" * 50, "b"))
    assert member.size - before == size_of(("a" * 50, "b")) == 251
