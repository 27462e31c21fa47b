"""Timeouts of requests that wait for Redis.

A paused Redis neither responds nor disconnects. After the timeout, the client gets a retriable error, and the work
continues. Kafka does the same for slow replicas, after `timeout_ms` or `offsets.commit.timeout.ms`.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from headrace.kafka.errors import Code
from headrace.kafka.server.request_context import RequestContext

SWEEP_MS = 250
"""Milliseconds between checks for overdue requests."""
LEAST_MS = 1_000
"""Shortest timeout in milliseconds."""
UNSAID_MS = 25_000
"""Milliseconds for requests without a timeout; clients give up after 30 s (`request.timeout.ms`)."""
MESSAGE = "Redis has not answered yet; what was asked for is still under way"

Due = Callable[[Any, RequestContext], int | None]


class Bound(msgspec.Struct, frozen=True):
    """Timeout of one API."""

    due_ms: Due
    """As `Late.due_ms`, given the request."""
    code: Code = Code.REQUEST_TIMED_OUT
    """Error code that makes clients retry."""
    code_untimed: Code | None = None
    """Error code if the request's `timeout_ms` is 0; None: `code`."""
    stays: bool = False
    """As `Late.stays`."""

    def code_for(self, request: Any) -> Code:
        """Return the error code for a request."""
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
    runner = context.broker.groups.runner(request.group_id)
    since_ms = context.seen_ms if runner is None else runner.writing_since_ms
    if since_ms is None:
        return None
    return max(since_ms, context.seen_ms) + context.broker.settings.offsets_commit_timeout_ms


BY_ITSELF = Bound(_by_itself, code_untimed=Code.KAFKA_STORAGE_ERROR)
"""For requests that may name a timeout; without one librdkafka takes REQUEST_TIMED_OUT for success."""
UNSAID = Bound(_unsaid)
"""For requests without a timeout."""
OF_LOGS = Bound(_unsaid, Code.KAFKA_STORAGE_ERROR)
"""For reads from logs; consumers give up at REQUEST_TIMED_OUT."""
OF_OFFSETS = Bound(_by_itself, Code.KAFKA_STORAGE_ERROR)
"""As `OF_LOGS`, for requests that may name a timeout."""
OF_RECORDS = Bound(_waiting, Code.KAFKA_STORAGE_ERROR)
"""For reads that may wait for records."""
OF_TOPICS = Bound(_named, Code.LEADER_NOT_AVAILABLE)
"""For topic lookups, which may create topics."""
COMMIT = Bound(_stored, stays=True)
"""For commits; librdkafka retries a commit at this code only."""
OF_CHANGES = Bound(_stored, Code.COORDINATOR_NOT_AVAILABLE, stays=True)
"""For other group changes that wait for storage only."""
OF_GROUPS = Bound(_stored, Code.COORDINATOR_NOT_AVAILABLE)
"""For group queries."""
OF_MEMBERS = Bound(_held, Code.COORDINATOR_NOT_AVAILABLE, stays=True)
"""For group changes that may wait for members."""
OF_PRODUCER_IDS = OF_POSITIONS = Bound(_stored, Code.COORDINATOR_LOAD_IN_PROGRESS)
"""The only code at which every Java client retries these requests."""
