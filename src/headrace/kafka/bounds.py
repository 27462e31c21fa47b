"""How long a request is waited for where Redis gives no answer, and what its client is told then.

A Redis that is stopped neither answers nor closes its connection. What was asked for goes on, and is counted in the
memory for requests until it is through; its client is told to ask again. Kafka does the same where its replicas do not
answer: after the request's `timeout_ms`, and for what groups store after `offsets.commit.timeout.ms`.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from headrace.kafka.errors import Code
from headrace.kafka.exchange import Exchange

SWEEP_MS = 250
"""How often it is looked who waits for too long."""
LEAST_MS = 1_000
"""A shorter time is taken as this one."""
UNSAID_MS = 25_000
"""For requests that name no time: clients give theirs up after 30 s (`request.timeout.ms`)."""
MESSAGE = "Redis has not answered yet; what was asked for is still under way"

Due = Callable[[Any, Exchange], int | None]


class Bound(msgspec.Struct, frozen=True):
    """Of one API."""

    due_ms: Due
    """As `Late.due_ms`, given the request."""
    code: Code = Code.REQUEST_TIMED_OUT
    """What clients take for a reason to try again."""


def _by_itself(request: Any, exchange: Exchange) -> int | None:
    # librdkafka sends 0 unless it is told otherwise, and takes REQUEST_TIMED_OUT for success then.
    return exchange.seen_ms + max(request.timeout_ms, LEAST_MS) if request.timeout_ms > 0 else None


def _unsaid(_: Any, exchange: Exchange) -> int:
    return exchange.seen_ms + UNSAID_MS


def _stored(_: Any, exchange: Exchange) -> int:
    return exchange.seen_ms + exchange.broker.settings.offsets_commit_timeout_ms


def _held(request: Any, exchange: Exchange) -> int | None:
    """Members wait for one another for as long as they like: only what is being stored meanwhile is not waited for."""
    runner = exchange.broker.groups.runner(request.group_id)
    # Of other brokers' groups: it is being loaded.
    since_ms = exchange.seen_ms if runner is None else runner.writing_since_ms
    if since_ms is None:
        return None
    return max(since_ms, exchange.seen_ms) + exchange.broker.settings.offsets_commit_timeout_ms


BY_ITSELF = Bound(_by_itself)
"""The request names the time; one that names none waits for as long as it takes."""
UNSAID = Bound(_unsaid)
"""It names none."""
COMMIT = Bound(_stored)
"""What a group stores, and Kafka's code for it: librdkafka tries a commit again by this code alone."""
OF_GROUPS = Bound(_stored, Code.COORDINATOR_NOT_AVAILABLE)
"""What else is asked of groups."""
OF_MEMBERS = Bound(_held, Code.COORDINATOR_NOT_AVAILABLE)
"""The same where members may have to wait for one another."""
OF_PRODUCER_IDS = Bound(_stored, Code.COORDINATOR_LOAD_IN_PROGRESS)
"""The one code by which every Java client asks again."""
