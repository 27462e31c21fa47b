"""Acknowledgements of share groups, as ShareFetch and ShareAcknowledge have them."""

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.broker.sharing.session import Place, SessionError, SessionProblem, ShareSession
from headrace.broker.sharing.share import Share
from headrace.groups.sharing.partition import AckBatch, AckProblem
from headrace.kafka.errors import Code, code_of
from headrace.kafka.server.request_context import RequestContext
from headrace.topics.errors import StorageUnavailable, TopicError, UnknownTopic

_SESSIONS = {problem: Code[problem.name] for problem in SessionProblem}
_PROBLEMS = {problem: Code[problem.name] for problem in AckProblem}
_BYTE = 0xFF

Outcomes = dict[Place, tuple[Code, str | None]]
"""Partition -> error code and message of its list of acknowledgements."""


def session_code(error: SessionError) -> Code:
    """Return the code of a session's error."""
    return _SESSIONS[error.problem]


def batches_of(topics: Iterable[Any]) -> dict[Place, list[AckBatch]]:
    """Return the acknowledgements of a request by partition, without partitions that have none."""
    found: dict[Place, list[AckBatch]] = {}
    for topic in topics:
        for partition in topic.partitions:
            if partition.acknowledgement_batches:
                found.setdefault((topic.topic_id, partition.partition_index), []).extend(
                    AckBatch(each.first_offset, each.last_offset, _types(each.acknowledge_types))
                    for each in partition.acknowledgement_batches
                )
    return found


def _types(numbers: list[int]) -> bytes:
    try:
        return bytes(numbers)
    except ValueError:
        # A negative type is as unknown as one above all.
        return bytes(number & _BYTE for number in numbers)


async def acknowledge(
    session: ShareSession, given: Mapping[Place, list[AckBatch]], context: RequestContext, *, renewing: bool
) -> Outcomes:
    """Apply the acknowledgements of a member, and return once they count."""
    shares = context.broker.shares

    async def one(place: Place) -> tuple[Code, str | None]:
        share: Share | None = None
        problem: AckProblem | Exception | None
        try:
            share = shares.find(session.group, place)
            if not share.is_ready:
                await share.ready()
        except TopicError as error:
            problem = error
        else:
            problem = await share.acknowledge(session.member_id, given[place], renewing=renewing)
        if share is not None and isinstance(problem, UnknownTopic):
            # Clients may name any partition. The table must not keep partitions that the group does not have.
            shares.forget(share)
        if isinstance(problem, AckProblem):
            return _PROBLEMS[problem], _WHY[problem]
        return _code_of(problem), None if problem is None else str(problem)

    if len(given) == 1:
        (place,) = given
        return {place: await one(place)}
    return {place: outcome async for place, outcome in context.broker.lane.a_few_at_once(list(given), one)}


_WHY = {
    AckProblem.INVALID_RECORD_STATE: "a record is not acquired by this member, or its lock has ended",
    AckProblem.INVALID_REQUEST: "the acknowledgements are malformed, out of order, or of records never acquired",
}


def _code_of(error: Exception | None) -> Code:
    # Storage has not responded, or not in time. Records stay acquired until their locks end.
    return Code.COORDINATOR_NOT_AVAILABLE if isinstance(error, StorageUnavailable) else code_of(error)
