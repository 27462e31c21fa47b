"""Many consumers of one group (KIP-848), from a seed, on a manual clock; and the same with one rule broken.

Requests and responses get lost, and arrive late on a former connection. Clients revoke slowly, pause, die, restart,
leave, and change their subscriptions. Topics appear, grow, disappear and are created again. The server restarts, or
dies before or after a write. The rules of `World` must hold after each event, and must notice each mistake below.
To run one seed again: `simulate(seed)`. Many: `python -m tests.simulation.test_consumer_group --rounds 1000`.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.harness.consumer_world import World
from tests.harness.simulations import check_noticed, noted, run_many

from headrace.groups.assignment.holdings import Holdings
from headrace.groups.consumers import group as consumer_group
from headrace.groups.consumers import heartbeat
from headrace.groups.consumers.events import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.groups.consumers.member import Member, owns_only
from headrace.groups.consumers.membership import Membership
from headrace.groups.model import JOIN_EPOCH, StoredConsumer
from headrace.groups.timers import TimerKind
from headrace.groups.turn import Turn

Patch = pytest.MonkeyPatch
STEPS = 400
MOST_SEEDS = 60


def simulate(seed: int, steps: int = STEPS, *, numbered: bool = True) -> World:
    world = World(seed, numbered=numbered)
    with noted(seed):
        world.run(steps)
        before = [set(client.owned) for client in world.clients]
        world.ctx.restart()
        world.settle()
        assert before == [client.owned for client in world.clients], "a restart moved partitions"
        world.check_settled()
    return world


@pytest.mark.parametrize("seed", range(20))
def test_a_group_keeps_its_promises_whatever_happens(seed: int) -> None:
    simulate(seed)


@pytest.mark.parametrize("seed", range(5))
def test_a_group_keeps_its_promises_without_numbers_of_connections(seed: int) -> None:
    simulate(seed, numbered=False)


def test_a_group_keeps_its_promises_from_the_seed_of_the_run() -> None:
    seed = random.getrandbits(32)  # by the seed that pytest-randomly prints
    print(f"simulate(seed={seed})")
    simulate(seed)


def test_the_simulation_reaches_what_it_is_for() -> None:
    worlds = [simulate(seed) for seed in range(100, 108)]
    seen = sum((world.seen for world in worlds), Counter[str]())
    assert seen["late"] > 100
    assert seen["commit"] > 500
    assert seen["removed"] > 2
    assert seen["UNRELEASED_INSTANCE_ID"] > 20
    assert seen["moved"] > 500
    assert sum(world.ctx.crashes for world in worlds) > 50


# Rules that are broken on purpose


def _changed(patch: Patch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace a function by `change(original, *arguments)`."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **options: change(original, *arguments, **options))


def an_acknowledgement_with_the_previous_epoch_counts(patch: Patch) -> None:
    def beat(original: Any, group: Membership, settings: Any, request: ConsumerHeartbeat, turn: Turn) -> Any:
        member = group.members.get(request.member_id)
        retried = member is not None and request.member_epoch == member.previous_epoch
        if member and retried and owns_only(request.owned or (), member.assigned(group.holdings)):
            request = replace(request, member_epoch=member.epoch)
        return original(group, settings, request, turn)

    _changed(patch, heartbeat, "_beat", beat)


def an_acknowledgement_over_an_older_connection_counts(patch: Patch) -> None:
    def beat(original: Any, group: Membership, settings: Any, request: ConsumerHeartbeat, turn: Turn) -> Any:
        return original(group, settings, replace(request, connection=10**6), turn)

    _changed(patch, heartbeat, "_beat", beat)


def any_epoch_is_accepted(patch: Patch) -> None:
    patch.setattr(heartbeat, "_check_epoch", lambda *_: None)


def a_lost_response_fences(patch: Patch) -> None:
    _changed(patch, heartbeat, "owns_only", lambda _original, *_: False)


def no_acknowledgement_is_needed(patch: Patch) -> None:
    def reconcile(original: Any, group: Any, member: Any, _owned: Any, turn: Turn) -> Any:
        return original(group, member, (), turn)

    _changed(patch, heartbeat, "reconcile", reconcile)


def partitions_are_given_up_before_they_are_adopted(patch: Patch) -> None:
    patch.setattr(Member, "may_adopt", lambda *_: False)


def partitions_are_granted_while_they_have_an_owner(patch: Patch) -> None:
    def grant(original: Any, holdings: Holdings[str], who: str, parts: Any, epoch: int) -> None:
        for topic, partitions in parts.items():
            for partition in partitions:
                owner = holdings.granted(topic.name, partition)
                if owner is not None:
                    holdings.give_up(owner[0], {topic: [partition]})
        original(holdings, who, parts, epoch)

    _changed(patch, Holdings, "grant", grant)
    patch.setattr(Holdings, "free_for", Holdings.due)


def the_time_to_revoke_runs_on(patch: Patch) -> None:
    def cancel(original: Any, turn: Turn, key: Any) -> None:
        if key.kind is not TimerKind.REVOCATION:
            original(turn, key)

    _changed(patch, Turn, "cancel_timer", cancel)


def heartbeats_do_not_renew_the_session(patch: Patch) -> None:
    def set_timer(original: Any, turn: Turn, key: Any, delay_ms: int) -> None:
        if key.kind is not TimerKind.SESSION or not turn.has_timer(key):
            original(turn, key, delay_ms)

    _changed(patch, Turn, "set_timer", set_timer)


def _stored_with(patch: Patch, change: Callable[[StoredConsumer], StoredConsumer]) -> None:
    _changed(patch, Member, "stored", lambda original, *arguments: change(original(*arguments)))


def the_previous_epoch_is_not_stored(patch: Patch) -> None:
    _stored_with(patch, lambda stored: replace(stored, previous_epoch=stored.epoch))


def owners_are_not_stored(patch: Patch) -> None:
    _stored_with(patch, lambda stored: replace(stored, held=(), revoking=()))


def the_target_is_not_stored(patch: Patch) -> None:
    _stored_with(patch, lambda stored: replace(stored, target=()))


def a_live_static_member_loses_its_place(patch: Patch) -> None:
    patch.setattr(heartbeat, "_check_place", lambda *_: None)


def responses_before_the_write(patch: Patch) -> None:
    _changed(patch, Turn, "effects", lambda original, turn: list(reversed(original(turn))))


def an_unresolved_pattern_means_no_topics(patch: Patch) -> None:
    def restore(original: Any, group: Membership, *arguments: Any) -> None:
        original(group, *arguments)
        for member in group.members.values():
            group.holdings.subscribe(member.member_id, member.topics)

    _changed(patch, Membership, "restore", restore)


def a_deleted_topic_remains(patch: Patch) -> None:
    def topic(original: Any, holdings: Any, name: str, topic_id: Any, partitions: int | None) -> None:
        if partitions is not None:
            original(holdings, name, topic_id, partitions)

    _changed(patch, Holdings, "topic", topic)


def a_full_request_gets_no_assignment(patch: Patch) -> None:
    patch.setattr(heartbeat, "_is_full", lambda request: request.member_epoch == JOIN_EPOCH)


def no_change_is_sent_as_no_partitions(patch: Patch) -> None:
    def result(**fields: Any) -> ConsumerHeartbeatResult:
        return ConsumerHeartbeatResult(**{**fields, "assignment": fields.get("assignment") or ()})

    patch.setattr(heartbeat, "ConsumerHeartbeatResult", result)


def any_commit_counts(patch: Patch) -> None:
    patch.setattr(consumer_group, "check_commit", lambda *_: {})


def commits_need_the_present_epoch(patch: Patch) -> None:
    def check(original: Any, group: Membership, request: Any) -> Any:
        member = group.members.get(request.member_id)
        if member is not None and request.generation != member.epoch:
            request = replace(request, member_id="unknown")
        return original(group, request)

    _changed(patch, consumer_group, "check_commit", check)


MISTAKES = [
    an_acknowledgement_with_the_previous_epoch_counts,
    an_acknowledgement_over_an_older_connection_counts,
    any_epoch_is_accepted,
    a_lost_response_fences,
    no_acknowledgement_is_needed,
    partitions_are_given_up_before_they_are_adopted,
    partitions_are_granted_while_they_have_an_owner,
    the_time_to_revoke_runs_on,
    heartbeats_do_not_renew_the_session,
    the_previous_epoch_is_not_stored,
    owners_are_not_stored,
    the_target_is_not_stored,
    a_live_static_member_loses_its_place,
    responses_before_the_write,
    an_unresolved_pattern_means_no_topics,
    a_deleted_topic_remains,
    a_full_request_gets_no_assignment,
    no_change_is_sent_as_no_partitions,
    any_commit_counts,
    commits_need_the_present_epoch,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.__name__)
def test_the_rules_notice_a_mistake(mistake: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mistake(monkeypatch)
    numbered = mistake is not an_acknowledgement_with_the_previous_epoch_counts
    check_noticed(lambda seed: simulate(seed, numbered=numbered), range(MOST_SEEDS))


if __name__ == "__main__":
    run_many(simulate)
