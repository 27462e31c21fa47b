"""States of a classic group and their transitions."""

import re
from enum import Enum


class GroupState(Enum):
    """Where a group stands. The values are Kafka's names, as tools show them.

    ::

        Empty ──join──► PreparingRebalance ──all rejoined, or time is up──► CompletingRebalance
          ▲                 │    ▲  ▲                                           │        │
          └──no member left─┘    │  └──join, leave, expiry, sync time is up─────┘        │
                                 │                                                       │
                                 └──join, leave, expiry, sync time is up── Stable ◄──leader syncs

        Any state but Dead may end in Dead: the group was deleted or has expired.
    """

    EMPTY = "Empty"
    """No members. Offsets expire from here. New members may have received their id.

    A join opens a generation. Commits come only from outside the group. Sync and heartbeat: UNKNOWN_MEMBER_ID.
    """
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are joining or rejoining.

    Joins are held. Heartbeats return REBALANCE_IN_PROGRESS and renew the session. Commits of the current generation are
    accepted, because members commit what they give up. Sync: REBALANCE_IN_PROGRESS.
    """
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The generation waits for the leader's assignment.

    Syncs are held. Heartbeats succeed. Commits: REBALANCE_IN_PROGRESS. A changed or new member restarts the join phase.
    """
    STABLE = "Stable"
    """All members have an assignment, and sync returns it. A join of the leader or a change restarts the join phase."""
    DEAD = "Dead"
    """Deleted. The runner removes it. All requests: UNKNOWN_MEMBER_ID, or GROUP_ID_NOT_FOUND for tools."""


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
