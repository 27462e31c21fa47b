"""ShareFetch (78), versions 1-2 (KIP-932).

Behavior
- Acknowledges records of earlier fetches first, then acquires others: whole batches, lowest offsets first.
- A share session has the partitions to fetch, so that requests name only changes. It belongs to one connection. When
  it ends, with session epoch -1 or with the connection, the server releases all records of the member.
- Waits up to `max_wait_ms` for records. New records, a release, the end of a lock and room in the window end the wait.
  `min_bytes` has no other effect: records are locked from the moment of the response.
- Starts with the partition after the one that was served last.
- On a native topic, acquires single records, and `max_records` is always a strict limit.
- For a partition that another broker leads, returns that leader and its address.
- Serves any member ID, as in Kafka. Returns UNKNOWN_TOPIC_OR_PARTITION for a partition that the coordinator has not
  assigned to the group.

Version notes
- 2: `share_acquire_mode` 1 makes `max_records` a strict limit (KIP-1206), and locks can be renewed (KIP-1222).
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import structlog

from headrace.broker.partition.cache import count_records
from headrace.broker.sharing.fetch import ShareFetch, ShareFetchLimits
from headrace.broker.sharing.session import FINAL_EPOCH, FIRST_EPOCH, Place, SessionError, ShareSession
from headrace.broker.sharing.share import ShareFound
from headrace.groups.sharing.partition import AckBatch
from headrace.kafka.current_leader import MOVED, CurrentLeaders
from headrace.kafka.denied import No, Refused, Steps, parts, whole
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import groups, referred_names, topics
from headrace.kafka.server.registry import WaitsFor, register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_RECORDS
from headrace.kafka.share_acknowledgements import Outcomes, acknowledge, batches_of, session_code
from headrace.protocol.messages import ShareFetchRequest, ShareFetchResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import TopicError, UnknownTopic

Response = ShareFetchResponse
PartitionData = ShareFetchResponse.PartitionData

MOST_BYTES = 1 << 20
"""Bytes of a request: one acknowledgement type for each of a million records."""
_EXACT = 1
"""`share_acquire_mode` in which `max_records` is a strict limit."""
_WAITING_BYTES = 850
"""Memory for each partition while a fetch waits."""
_CROWDED_MS = 100
"""Maximum wait in ms if `RequestContext.may_wait` refuses a longer one."""
_log = structlog.get_logger("headrace.kafka.apis")


def its_share_group(request: Any, _: RequestContext) -> Iterable[str]:
    """Return the request's group, if any."""
    return () if request.group_id is None else (request.group_id,)


def its_topics(request: Any, context: RequestContext) -> Iterable[str]:
    """Return the names of the request's topics."""
    return referred_names((topic.topic_id for topic in request.topics), context)


def _places(topic: ShareFetchRequest.FetchTopic, _: Any, context: RequestContext) -> Iterator[Any]:
    return ((ResourceType.TOPIC, name) for name in referred_names((topic.topic_id,), context))


def _no(topic: ShareFetchRequest.FetchTopic, no: No, _: RequestContext) -> Response.ShareFetchableTopicResponse:
    refused = [
        PartitionData(partition_index=each.partition_index, error_code=no.code, error_message=no.message, records=[])
        for each in topic.partitions
    ]
    return Response.ShareFetchableTopicResponse(topic_id=topic.topic_id, partitions=refused)


_no_group = whole(lambda _, __, no: Response(error_code=no.code, error_message=no.message))
_no_topics = parts("topics", _places, _no, "responses", always=True)


def _take_out(request: ShareFetchRequest, context: RequestContext, refused: Refused) -> Steps:
    # A timeout refuses everything: the session of the member cannot go on as if it had a response.
    group = refused.first(((ResourceType.GROUP, request.group_id or ""),))
    return (_no_topics if group is None else _no_group)(request, context, refused)


@register(
    ShareFetchRequest,
    1,
    2,
    needs=(groups(Operation.READ, its_share_group), topics(Operation.READ, its_topics)),
    refusal=_take_out,
    most_bytes=MOST_BYTES,
    bound=OF_RECORDS,
    waits_for=WaitsFor.RECORDS,
    urgent=True,
)
async def handle(request: ShareFetchRequest, context: RequestContext) -> Response:
    """Acknowledge records and acquire others."""
    given = batches_of(request.topics)
    if _is_invalid(request, given):
        return Response(error_code=Code.INVALID_REQUEST)
    try:
        session = _session(request, context)
    except SessionError as error:
        return Response(error_code=session_code(error))
    outcomes = await acknowledge(session, given, context, renewing=request.is_renew_ack) if given else {}
    answer = _Answer(session, context, outcomes)
    if request.share_session_epoch == FINAL_EPOCH:
        end(session, context)
        return await answer.response({}, {})
    sessions = context.broker.shares.sessions
    try:
        sessions.add(
            session, ((each.topic_id, part.partition_index) for each in request.topics for part in each.partitions)
        )
    except SessionError as error:
        return Response(error_code=session_code(error))
    sessions.forget(
        session, ((each.topic_id, index) for each in request.forgotten_topics_data for index in each.partitions)
    )
    fetch = _fetch(request, context, session, has_outcomes=bool(outcomes))
    await fetch.run()
    context.waited = fetch.waited
    context.held += fetch.held
    if context.done:
        await _give_back(session, fetch.found, context)
    if context.account is not None:
        context.account.fetched(fetch.held)
    return await answer.response(fetch.found, fetch.errors)


def _is_invalid(request: ShareFetchRequest, given: dict[Place, list[AckBatch]]) -> bool:
    if not request.group_id or not request.member_id or request.share_session_epoch < FINAL_EPOCH:
        return True
    if request.share_session_epoch == FIRST_EPOCH and given:
        return True
    # A request that renews locks fetches nothing.
    limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
    return request.is_renew_ack and any(limits)


def _session(request: ShareFetchRequest, context: RequestContext) -> ShareSession:
    shares = context.broker.shares
    group, member_id = request.group_id or "", request.member_id or ""
    if request.share_session_epoch != FIRST_EPOCH:
        return shares.sessions.find(group, member_id, request.share_session_epoch)
    session = shares.sessions.open(group, member_id)
    cleanups, key = context.channel.cleanups, ("share session", context.broker.cluster, group, member_id)
    cleanups.add(key, partial(shares.end, session))
    # A session on another connection may replace it.
    session.ended = partial(cleanups.discard, key)
    return session


def end(session: ShareSession, context: RequestContext) -> None:
    """End a session. The records of its member are available again."""
    context.broker.shares.end(session)


def _fetch(
    request: ShareFetchRequest, context: RequestContext, session: ShareSession, *, has_outcomes: bool
) -> ShareFetch:
    broker = context.broker
    most = min(request.max_bytes, broker.settings.fetch_max_bytes)
    if context.account is not None and context.account.most_bytes is not None:
        most = min(most, context.account.most_bytes)
    context.channel.fetches += 1
    may_wait = context.may_wait(len(session.partitions) * _WAITING_BYTES)
    max_wait_ms = request.max_wait_ms if may_wait else min(request.max_wait_ms, _CROWDED_MS)
    limits = ShareFetchLimits(
        max_wait_ms=max_wait_ms,
        max_bytes=most,
        max_records=request.max_records,
        exact=request.share_acquire_mode == _EXACT,
    )
    return ShareFetch(
        session,
        limits,
        _Finder(context, session).find,
        broker.shares.forget,
        _code_of,
        clock=broker.clock,
        budget=broker.reads,
        lane=broker.lane,
    )


async def _give_back(session: ShareSession, found: dict[Place, ShareFound], context: RequestContext) -> None:
    """Undo the acquisition of records that the client does not get, because its request has timed out."""

    async def one(place: Place) -> None:
        try:
            await context.broker.shares.find(session.group, place).give_back(session.member_id, found[place].acquired)
        except TopicError as error:
            # Their locks will end.
            _log.warning("acquired records are not available", group=session.group, reason=str(error))

    async for _ in context.broker.lane.a_few_at_once(list(found), one):
        pass


class _Finder:
    """Finds share partitions whose topics the client may still read: a session may be older than a change of ACLs.

    A session that has ended finds nothing: no request could acknowledge the records.
    """

    def __init__(self, context: RequestContext, session: ShareSession) -> None:
        self._broker = context.broker
        self._session = session
        self._grants = self._broker.access.grants(context.principal, context.channel.client_host, self._broker.cluster)

    def find(self, group: str, place: Place) -> Any:
        live = self._broker.topics.with_id(place[0].bytes) if self._grants is not None else None
        if live is not None and self._grants is not None:
            name = live.topic.name
            if not self._grants.may(Operation.READ, ResourceType.TOPIC, name):
                raise PermissionError(f"topic {name} may not be read")
        if self._session not in self._broker.shares.sessions:
            raise UnknownTopic("the share session has ended")
        return self._broker.shares.find(group, place)


def _code_of(error: Exception | None) -> Code:
    return Code.TOPIC_AUTHORIZATION_FAILED if isinstance(error, PermissionError) else code_of(error)


class _Answer:
    """Builds the response."""

    def __init__(self, session: ShareSession, context: RequestContext, outcomes: Outcomes) -> None:
        self._session = session
        self._context = context
        self._outcomes = outcomes
        self._leaders = CurrentLeaders(context, Response)

    async def response(self, found: dict[Place, ShareFound], errors: dict[Place, Exception]) -> Response:
        by_topic: dict[Any, list[PartitionData]] = {}
        places = dict.fromkeys((*self._outcomes, *errors, *found))
        async for place in self._context.pace().each(places):
            data = self._partition(place, found.get(place), errors.get(place))
            by_topic.setdefault(place[0], []).append(data)
        self._session.told = {place: _code_of(error) for place, error in errors.items()}
        return Response(
            acquisition_lock_timeout_ms=self._context.broker.shares.lock_ms(self._session.group),
            responses=[
                Response.ShareFetchableTopicResponse(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in by_topic.items()
            ],
            node_endpoints=self._leaders.endpoints(),
        )

    def _partition(self, place: Place, found: ShareFound | None, error: Exception | None) -> PartitionData:
        topic_id, index = place
        code, (ack_code, ack_message) = _code_of(error), self._outcomes.get(place, (Code.NONE, None))
        live = self._context.broker.topics.with_id(topic_id.bytes)
        if found is not None and live is not None:
            counted = live.counted
            if live.tracer is not None:
                live.tracer.handed_out(live.topic.name, index, found.chunks)
            counted.bytes_out += found.size
            counted.records_out += count_records(found.chunks, has_gaps=True)
        leader = self._leaders.find(live, index) if code in MOVED or ack_code in MOVED else None
        return PartitionData(
            partition_index=index,
            error_code=code,
            error_message=None if error is None else str(error),
            acknowledge_error_code=ack_code,
            acknowledge_error_message=ack_message,
            current_leader=leader or Response.LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1),
            records=[] if found is None else found.chunks,
            acquired_records=[]
            if found is None
            else [
                Response.AcquiredRecords(
                    first_offset=each.first, last_offset=each.last, delivery_count=each.delivery_count
                )
                for each in found.acquired
            ],
        )
