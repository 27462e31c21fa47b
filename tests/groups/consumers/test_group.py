from tests.harness.consumers import ConsumerContext

from headrace.groups import timers
from headrace.groups.configs import GroupConfig
from headrace.groups.consumers.events import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.groups.model import GroupKind, OffsetAndMetadata, TopicPartition


def beat(ctx: ConsumerContext, member_id: str, epoch: int, **said: object) -> ConsumerHeartbeat:
    """A heartbeat that says nothing else."""
    return ConsumerHeartbeat(
        token=0,
        member_id=member_id,
        member_epoch=epoch,
        client_id="client",
        client_host="/127.0.0.1",
        **said,  # type: ignore[arg-type]
    )


def test_only_what_changes_nothing_may_go_on(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    assert ctx.part.may_go_on(beat(ctx, "A", 2)) == ConsumerHeartbeatResult(member_id="A", member_epoch=2)
    changing: list[ConsumerHeartbeat] = [
        beat(ctx, "A", 1),
        beat(ctx, "A", 0),
        beat(ctx, "A", -1),
        beat(ctx, "B", 2),
        beat(ctx, "A", 2, topics=("flights",)),
        beat(ctx, "A", 2, owned=()),
        beat(ctx, "A", 2, pattern=""),
        beat(ctx, "A", 2, instance_id="i"),
        beat(ctx, "A", 2, rack_id="r"),
        beat(ctx, "A", 2, server_assignor="range"),
        beat(ctx, "A", 2, rebalance_timeout_ms=1),
    ]
    assert [ctx.part.may_go_on(each) for each in changing] == [None] * len(changing)
    ctx.enter("B")
    assert [ctx.part.may_go_on(beat(ctx, *each)) for each in (("A", 2), ("B", 3))] == [None, None]


def test_a_heartbeat_that_changes_nothing_renews_session_and_connection(ctx: ConsumerContext) -> None:
    ctx.enter("A", connection=1)
    ctx.sleep(10_000)
    assert ctx.beat("A", connection=2) == ConsumerHeartbeatResult(member_id="A", member_epoch=2)
    assert not ctx.persisted
    assert ctx.remaining_ms(timers.session("A")) == 45_000
    ctx.enter("B")
    assert ctx.beat("A", connection=2).waits
    assert ctx.beat("A", owned=(0, 1), connection=1).waits, "it was sent before A learned what to give up"
    assert ctx.beat("A", owned=(0, 1), connection=2).member_epoch == 3


def test_a_changed_session_timeout_holds_from_the_next_heartbeat(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    ctx.configs.default = GroupConfig(consumer_session_timeout_ms=50_000)
    assert ctx.remaining_ms(timers.session("A")) == 45_000
    ctx.beat("A")
    assert ctx.remaining_ms(timers.session("A")) == 50_000
    ctx.sleep(49_999)
    assert ctx.described.state.value == "Stable"
    ctx.sleep(1)
    assert ctx.described.state.value == "Empty"


def test_subscribed_topics(ctx: ConsumerContext) -> None:
    ctx.enter("A", topics=("flights", "nowhere"))
    ctx.enter("B", topics=("trains",))
    assert set(ctx.part.subscribed()) == {"flights", "nowhere", "trains"}
    assert (ctx.part.reads("flights"), ctx.part.reads("ships")) == (True, False)


def test_an_empty_group_that_a_classic_member_only_tried_to_join(ctx: ConsumerContext) -> None:
    """Its first generation is not stored."""
    ctx.enter("A")
    ctx.beat("A", epoch=-1)
    ctx.join(version=3)
    ctx.restart()
    assert (ctx.whole.kind, ctx.stored.fields) == (GroupKind.CONSUMER, ())


def test_a_restored_group_counts_its_members(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    ctx.commit_all("A", {TopicPartition("flights", 0): OffsetAndMetadata(offset=1)}, generation=2)
    size = ctx.part.member_bytes
    ctx.restart()
    assert (ctx.whole.kind, ctx.part.size, ctx.part.member_bytes) == (GroupKind.CONSUMER, 1, size)
    assert ctx.whole.generations == 2
