"""The states of a classic group, and which may follow which."""

import re
from enum import Enum


class GroupState(Enum):
    """Where a group stands. The values are Kafka's names, as tools show them.

    ::

        Empty ──join──► PreparingRebalance ──all rejoined, or time is up──► CompletingRebalance
          ▲                 │    ▲  ▲                                           │        │
          └──nobody is left─┘    │  └──join, leave, expiry, sync time is up─────┘        │
                                 │                                                       │
                                 └──join, leave, expiry, sync time is up── Stable ◄──leader syncs

        Any state but Dead may end in Dead: the group was deleted or has expired.
    """

    EMPTY = "Empty"
    """No members; perhaps positions, whose retention counts from here, and newcomers that were told their id.

    Join opens a generation; commits come from outside the group only; sync, heartbeat: UNKNOWN_MEMBER_ID.
    """
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for the members to (re)join.

    Joins are held. Heartbeats are answered with REBALANCE_IN_PROGRESS and keep the member alive. Commits of the
    present generation are taken: members commit what they hand back. Sync: REBALANCE_IN_PROGRESS.
    """
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The generation is known; waiting for the leader's assignment.

    Syncs are held. Heartbeats are fine. Commits: REBALANCE_IN_PROGRESS. A changed or new member starts over.
    """
    STABLE = "Stable"
    """Everyone has an assignment. Sync answers with the stored one; a join of the leader or a change starts over."""
    DEAD = "Dead"
    """Deleted; the runner forgets it. Every request: UNKNOWN_MEMBER_ID, or GROUP_ID_NOT_FOUND for the tools."""


PREDECESSORS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE},
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState) - {GroupState.DEAD},
}


class IllegalTransitionError(Exception):
    """An invalid transition: a bug, not a client error."""


def check_transition(old: GroupState, new: GroupState) -> None:
    """Raise IllegalTransitionError unless `new` may follow `old`."""
    if old not in PREDECESSORS[new]:
        raise IllegalTransitionError(f"a group cannot go from {old.value} to {new.value}")


def in_words(name: str) -> str:
    """Return a readable state for Kafka's `PreparingRebalance` or a client's `PREPARING_REBALANCING`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ").lower()
    return words.replace("rebalancing", "rebalance")
