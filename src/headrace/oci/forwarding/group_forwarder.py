"""Forward group requests to their coordinators.

They are forwarded unchanged, with an HMAC signature and their principal. If the coordinator changes, a request goes to
the next one. This is safe because a cursor holds all state of a read or commit.
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
"""Header of a response from the API itself, rather than from a server that is starting or stopping."""
_OWN_HEADERS = frozenset({"content-length", "content-type", "connection", "date", "opc-request-id", ANSWERED})
_UNAVAILABLE = 503
Done = tuple[int, Answer]


class _Refused(msgspec.Struct):
    code: str
    message: str


def group_of(operation: Operation, call: Call) -> Resource | None:
    """Return a call's group or None. Raises the operation's errors."""
    return next((each for rule, each in operation.needed(call) if rule.type is ResourceType.GROUP), None)


class GroupForwarder:
    """Forwards group requests."""

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
        """Respond to a client's request.

        `here` runs it if this server is the coordinator. `repeats`: whether it may run twice.

        Raises:
            OciError: also 503 if no coordinator is found for the duration of a takeover.
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
        """Respond to a forwarded request. Raises OciError 421 from another broker than the coordinator."""
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
        try:
            return self._clusters.get(group.cluster).groups.in_doubt()
        except UnknownCluster:
            return not self._peers.ownership.certain()


def _taken(member: Member, answer: PeerAnswer) -> Done:
    """Convert another broker's response. Raises NotHere or its OciError."""
    if answer.status == MISDIRECTED or ANSWERED not in answer.headers:
        raise NotHere(_why_not(member, answer))
    headers = {name: value for name, value in answer.headers.items() if name not in _OWN_HEADERS}
    if answer.status >= 400:
        refused = msgspec.json.decode(answer.body, type=_Refused)
        raise OciError(answer.status, refused.message, refused.code, headers)
    return answer.status, Answer(answer.body or None, headers)


def _why_not(member: Member, answer: PeerAnswer) -> str:
    if answer.status == MISDIRECTED:
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(answer.body, type=_Refused).message
    return f"broker {member.node_id} answers {answer.status}"
