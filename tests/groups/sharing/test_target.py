"""The target of a share group: where it is computed, how often, and what of it applies."""

from headrace.groups.consumers.events import Assigned
from headrace.groups.sharing.events import ShareHeartbeat
from headrace.groups.sharing.member import Sharer
from headrace.groups.sharing.target import Target


def member(name: str, *topics: str) -> Sharer:
    request = ShareHeartbeat(token=1, member_id=name, member_epoch=0, topics=topics)
    made = Sharer.joining(request)
    made.update(request)
    return made


def test_a_small_one_is_computed_at_once() -> None:
    target = Target()
    assert target.begin({"a": member("a", "t")}, {"t": 2}, 7, 100) is None
    assert (target.shares, target.epoch, target.is_computing) == ({"a": {"t": (0, 1)}}, 7, False)
    assert target.due_ms(500, 0) == 100, "the next one may begin at once"
    assert target.due_ms(500, 1_000) == 1_100


def test_a_large_one_is_computed_elsewhere_and_less_often() -> None:
    target = Target()
    assert target.due_ms(100, 0) == 100
    assign = target.begin({"a": member("a", "t")}, {"t": 50_000}, 7, 100)
    assert assign is not None
    assert target.is_computing
    assert target.shares == {}
    assert target.due_ms(100, 0) == 1_100
    other = Target().begin({"a": member("a", "t")}, {"t": 50_000}, 7, 100)
    assert other is not None
    assert not target.ends(Assigned(other, None), 900)
    assert target.ends(Assigned(assign, None), 900)
    assert not target.is_computing
    assert target.due_ms(900, 0) == 1_900, "the interval begins when it has ended"


def test_what_is_not_valid_any_more_does_not_apply() -> None:
    target = Target()
    target.apply(
        {"a": {"t": (0, 1), "unsubscribed": (0,), "deleted": (0,)}, "gone": {"t": (2,)}},
        {"a": member("a", "t", "deleted"), "new": member("new", "t")},
        {"t", "unsubscribed"},
    )
    assert target.shares == {"a": {"t": (0, 1)}, "new": {}}
