"""Requests that arrive late, or whose responses are lost."""

from tests.harness.consumers import SAME, ConsumerContext

from headrace.groups.errors import GroupError


def test_a_late_copy_of_the_previous_epoch_is_no_acknowledgement() -> None:
    """Apache Kafka 4.3.1 accepts this one, and grants a partition that the member still reads."""
    ctx = ConsumerContext()
    ctx.enter("A")
    ctx.settle("A")
    ctx.enter("B")
    before = ctx.beat("A").member_epoch
    ctx.beat("A", owned=(0, 1))
    assert ctx.epochs["A"] > before
    for member in ("C", "D"):
        ctx.enter(member)
    reads = ctx.has("A")
    assert ctx.beat("A", epoch=before, owned=()).error is None
    for member in ("B", "C", "D") * 3:
        ctx.beat(member, owned=SAME)
        assert not set(ctx.has(member)) & set(reads), "A has not given it up"
    ctx.settle("A", "B", "C", "D")
    assert sorted(each for member in "ABCD" for each in ctx.has(member)) == [0, 1, 2, 3]


def test_a_retry_gets_the_assignment_of_the_lost_response() -> None:
    ctx = ConsumerContext()
    joined = ctx.enter("A")
    ctx.settle("A")
    ctx.enter("B")
    ctx.beat("A")
    lost = ctx.beat("A", owned=(0, 1))
    again = ctx.beat("A", epoch=joined.member_epoch, owned=(0, 1), topics=("flights",), timeout_ms=5_000)
    assert again.error is None
    assert again.member_epoch == lost.member_epoch
    assert ctx.has("A") == [0, 1]
    assert ctx.beat("A", epoch=joined.member_epoch - 1, owned=()).error is GroupError.FENCED_MEMBER_EPOCH


def test_a_late_request_moves_nothing() -> None:
    """Its client would not learn of what it is granted."""
    ctx = ConsumerContext()
    ctx.enter("A")
    ctx.settle("A")
    ctx.enter("B")
    ctx.beat("B", connection=2)
    ctx.settle("A")
    assert ctx.beat("B", connection=1).assignment is None
    assert not ctx.persisted
    assert ctx.beat("B", connection=2).assignment is not None
    assert ctx.has("B") == [2, 3]


def test_a_member_gives_up_only_what_it_has_begun_to_read() -> None:
    """After it has joined, librdkafka sends a full request without the partitions that it is about to read."""
    ctx = ConsumerContext()
    ctx.enter("A")
    ctx.enter("B")
    for owned in ((), None):
        early = ctx.beat("A", owned=owned)
        assert (early.member_epoch, early.assignment, early.waits) == (2, None, True)
    full = ctx.beat("A", owned=(), topics=("flights",), timeout_ms=5_000)
    assert ctx.has("A") == [0, 1, 2, 3]
    assert (full.member_epoch, ctx.beat("B").assignment) == (2, None)
    asked = ctx.beat("A", owned=(0, 1, 2, 3))
    assert (asked.member_epoch, ctx.has("A")) == (2, [0, 1])
    assert ctx.beat("A", owned=(0, 1)).member_epoch == 3
    ctx.beat("B")
    assert ctx.has("B") == [2, 3]


def test_partitions_that_a_member_never_reads_are_free_after_a_while() -> None:
    ctx = ConsumerContext()
    ctx.enter("A")
    ctx.enter("B")
    ctx.sleep(9_999)
    assert ctx.beat("A", owned=(0, 1)).member_epoch == 2
    ctx.sleep(1)
    assert ctx.beat("A", owned=(0, 1)).member_epoch == 3
    ctx.beat("B")
    assert ctx.has("B") == [2, 3]


def test_a_member_that_joins_again_has_abandoned_everything() -> None:
    ctx = ConsumerContext()
    ctx.enter("A")
    ctx.enter("B")
    ctx.enter("A")
    assert ctx.has("A") == [0, 1]
    ctx.beat("B")
    assert ctx.has("B") == [2, 3]
    ctx.enter("C")
    # It has not named the others yet.
    assert ctx.beat("A", owned=(0,)).assignment is None


def test_a_member_does_not_have_to_read_a_deleted_topic() -> None:
    ctx = ConsumerContext()
    ctx.enter("A", topics=("flights", "trains"))
    ctx.change_topics(trains=None)
    assert ctx.beat("A", owned=(0, 1, 2, 3)).member_epoch == ctx.described.epoch


def test_a_restarted_server_does_not_know_what_a_member_has_begun_to_read() -> None:
    ctx = ConsumerContext()
    ctx.enter("A")
    ctx.enter("B")
    ctx.restart()
    assert ctx.beat("A", owned=()).member_epoch == 2
    assert ctx.beat("B").assignment is None
    ctx.beat("A", owned=SAME)
    assert ctx.has("A") == [0, 1]
