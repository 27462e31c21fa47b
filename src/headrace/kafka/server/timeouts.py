"""How long a request is waited for where Redis gives no answer, and what its client is told then.

A Redis that is stopped neither answers nor closes its connection. What was asked for goes on, and is counted in the
memory for requests until it is through; its client is told to ask again. Kafka does the same where its replicas do not
answer: after the request's `timeout_ms`, and for what groups store after `offsets.commit.timeout.ms`.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from headrace.kafka.errors import Code
from headrace.kafka.server.request_context import RequestContext

SWEEP_MS = 250
"""How often it is looked who waits for too long."""
LEAST_MS = 1_000
"""A shorter time is taken as this one."""
UNSAID_MS = 25_000
"""For requests that name no time: clients give theirs up after 30 s (`request.timeout.ms`)."""
MESSAGE = "Redis has not answered yet; what was asked for is still under way"

Due = Callable[[Any, RequestContext], int | None]


class Bound(msgspec.Struct, frozen=True):
    """Of one API."""

    due_ms: Due
    """As `Late.due_ms`, given the request."""
    code: Code = Code.REQUEST_TIMED_OUT
    """What clients take for a reason to try again."""
    code_untimed: Code | None = None
    """The same where the request's `timeout_ms` is 0; None: as `code`, whatever the request says."""
    stays: bool = False
    """As `Late.stays`."""

    def code_for(self, request: Any) -> Code:
        """The error code for one request."""
        if self.code_untimed is not None and request.timeout_ms <= 0:
            return self.code_untimed
        return self.code


def _by_itself(request: Any, context: RequestContext) -> int:
    said_ms: int = request.timeout_ms
    return context.seen_ms + (max(said_ms, LEAST_MS) if said_ms > 0 else UNSAID_MS)


def _unsaid(_: Any, context: RequestContext) -> int:
    return context.seen_ms + UNSAID_MS


def _waiting(request: Any, context: RequestContext) -> int:
    said_ms: int = request.max_wait_ms
    return context.seen_ms + max(said_ms, 0) + UNSAID_MS


def _named(request: Any, context: RequestContext) -> int | None:
    return context.seen_ms + UNSAID_MS if request.topics else None


def _stored(_: Any, context: RequestContext) -> int:
    return context.seen_ms + context.broker.settings.offsets_commit_timeout_ms


def _held(request: Any, context: RequestContext) -> int | None:
    """Members wait for one another for as long as they like: only what is being stored meanwhile is not waited for."""
    runner = context.broker.groups.runner(request.group_id)
    # Of other brokers' groups: it is being loaded.
    since_ms = context.seen_ms if runner is None else runner.writing_since_ms
    if since_ms is None:
        return None
    return max(since_ms, context.seen_ms) + context.broker.settings.offsets_commit_timeout_ms


BY_ITSELF = Bound(_by_itself, code_untimed=Code.KAFKA_STORAGE_ERROR)
"""The request names the time, or none: librdkafka takes REQUEST_TIMED_OUT for success then."""
UNSAID = Bound(_unsaid)
"""It names none: all that says nothing else."""
OF_LOGS = Bound(_unsaid, Code.KAFKA_STORAGE_ERROR)
"""What is read of logs; consumers give up by REQUEST_TIMED_OUT."""
OF_RECORDS = Bound(_waiting, Code.KAFKA_STORAGE_ERROR)
"""The same where records may have to be waited for."""
OF_TOPICS = Bound(_named, Code.LEADER_NOT_AVAILABLE)
"""Topics that are looked up, and may be created by that; all of them are known."""
COMMIT = Bound(_stored, stays=True)
"""What a group stores, and Kafka's code for it: librdkafka tries a commit again by this code alone."""
OF_CHANGES = Bound(_stored, Code.COORDINATOR_NOT_AVAILABLE, stays=True)
"""What else changes a group, and waits for nothing but that."""
OF_GROUPS = Bound(_stored, Code.COORDINATOR_NOT_AVAILABLE)
"""What is asked of groups."""
OF_MEMBERS = Bound(_held, Code.COORDINATOR_NOT_AVAILABLE, stays=True)
"""What changes it where members may have to wait for one another."""
OF_PRODUCER_IDS = OF_POSITIONS = Bound(_stored, Code.COORDINATOR_LOAD_IN_PROGRESS)
"""The one code by which every Java client asks again for these."""
