"""Requests about a group are carried to the broker that coordinates it, where there are several.

They are carried as they came, under a seal that says on whose behalf. Where the coordinator changes meanwhile they are
carried once more, to the next one: a cursor says all that a read or a commit needs, so it may be asked twice.
"""

import contextlib
from collections.abc import Awaitable, Callable

import msgspec

from headrace.broker.virtual_clusters import UnknownCluster, VirtualClusters
from headrace.http.peers.connections import Lost, PeerAnswer
from headrace.http.peers.peers import NotHere, Peers
from headrace.membership.view import Member
from headrace.oci.api.registry import Answer, Call, Operation
from headrace.oci.errors import OciError
from headrace.oci.forwarding.append_router import MISDIRECTED
from headrace.security.access.required_acls import Resource, ResourceType

ANSWERED = "headrace-answered"
"""The header of an answer that comes from the API itself, and not from a server that is being started or stopped."""
_OWN_HEADERS = frozenset({"content-length", "content-type", "connection", "date", "opc-request-id", ANSWERED})
_UNAVAILABLE = 503
Done = tuple[int, Answer]


class _Refused(msgspec.Struct):
    code: str
    message: str


def group_of(operation: Operation, call: Call) -> Resource | None:
    """The group that a call is about; None: it is about none. Raises what the operation would."""
    return next((each for rule, each in operation.needed(call) if rule.type is ResourceType.GROUP), None)


class GroupForwarder:
    """Has requests about groups answered by their coordinators."""

    def __init__(self, peers: Peers, clusters: VirtualClusters) -> None:
        self._peers = peers
        self._clusters = clusters

    async def answer(
        self,
        group: Resource,
        method: str,
        target: bytes,
        call: Call,
        *,
        request_id: str,
        body: bytes,
        here: Callable[[], Awaitable[Done]],
        repeats: bool,
    ) -> Done:
        """The answer to a client's request.

        Args:
            group: which it is about.
            method: of the request.
            target: its path and query as they came.
            call: the same, read.
            request_id: `opc-request-id`, if the client gave one.
            body: as it came.
            here: does it, if this server is the coordinator.
            repeats: whether it may be done twice.

        Raises:
            OciError: also 503 where no coordinator is found for as long as a takeover takes.
        """
        headers = {"opc-request-id": request_id} if request_id else {}

        async def there(member: Member) -> Done:
            try:
                answer = await self._peers.ask(member, method, target, body, principal=call.principal, headers=headers)
            except Lost as error:
                if repeats or not error.sent:
                    raise NotHere(str(error)) from error
                raise OciError(503, f"The coordinator of the group is gone: {error}") from error
            return _taken(member, answer)

        try:
            return await self._peers.owner_does(self._key(group), lambda: self._here(group, here), there)
        except NotHere as error:
            raise OciError(503, f"The coordinator of the group cannot be asked: {error}") from None

    async def carried(self, group: Resource, here: Callable[[], Awaitable[Done]]) -> Done:
        """The answer to a request that another broker brings; raises OciError 421 where it belongs to a third one."""
        try:
            return await self._here(group, here)
        except NotHere as error:
            raise OciError(MISDIRECTED, str(error), "MisdirectedRequest") from None

    def _key(self, group: Resource) -> str:
        return self._peers.ownership.group_key(group.cluster, group.name)

    async def _here(self, group: Resource, here: Callable[[], Awaitable[Done]]) -> Done:
        ownership = self._peers.ownership
        before = ownership.number
        if not ownership.owns(self._key(group)):
            raise NotHere(f"broker {ownership.node_id} does not coordinate the group")
        if self._in_doubt(group):
            raise NotHere(
                f"broker {ownership.node_id} does not know whether it still coordinates the group, since Redis has not "
                "taken its heartbeats; try again"
            )
        try:
            return await here()
        except OciError as error:
            if error.status == _UNAVAILABLE and ownership.number != before:
                raise NotHere(error.message) from error
            raise

    def _in_doubt(self, group: Resource) -> bool:
        """Whether another broker may coordinate a group by now: its instances are refused then, and get time for it."""
        try:
            return self._clusters.get(group.cluster).groups.in_doubt()
        except UnknownCluster:
            return not self._peers.ownership.certain()


def _taken(member: Member, answer: PeerAnswer) -> Done:
    """Another broker's answer as one of this server's. Raises NotHere; OciError: that one's error."""
    if answer.status == MISDIRECTED or ANSWERED not in answer.headers:
        raise NotHere(_why_not(member, answer))
    headers = {name: value for name, value in answer.headers.items() if name not in _OWN_HEADERS}
    if answer.status >= 400:
        refused = msgspec.json.decode(answer.body, type=_Refused)
        raise OciError(answer.status, refused.message, refused.code, headers)
    return answer.status, Answer(answer.body or None, headers)


def _why_not(member: Member, answer: PeerAnswer) -> str:
    """What another broker says that does not do it, if anything."""
    if answer.status == MISDIRECTED:
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(answer.body, type=_Refused).message
    return f"broker {member.node_id} answers {answer.status}"
