"""Cursors: signed tokens that hold everything a read needs, so that the server keeps nothing for them. Pure.

A token is MessagePack before 16 bytes of HMAC-SHA256, in base64 for URLs without padding: some 100 characters for one
partition, at most 1024 for an instance of a group. Nobody else can make or change one. It says until when it is good.
"""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable
from uuid import UUID

import msgspec

from headrace.groups.instances.model import GroupCursor

LONGEST = 1024
"""Characters of a cursor (OCI Streaming's API)."""
LONGEST_NAME = 255
"""UTF-8 bytes of the name of a group or an instance."""
SECRET_SIZE = 32

_MAC = 16
_MOST_BYTES = LONGEST * 3 // 4
_LARGEST = 2**63 - 1
_URL_SAFE = b"-_"


class InvalidCursor(Exception):
    """Not a cursor that this secret has signed."""


class PartitionCursor(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A place in one partition of a stream."""

    stream: bytes
    """The 16 bytes of the topic's id."""
    expires_ms: int
    partition: int
    offset: int
    """The next one to read."""
    not_before_ms: int | None = None
    """AT_TIME found nothing yet: reading begins at the first record with this time or a later one."""
    leader_epoch: int = -1
    """That of the log when the cursor was made, by which records are missed that Redis has lost; -1: not known."""


class InstanceCursor(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A group's instance; the fields of `GroupCursor`, with stream and expiry."""

    stream: bytes
    expires_ms: int
    group: str
    instance: str
    incarnation: int
    epoch: int
    generation: int
    timeout_ms: int
    commit_on_get: bool
    offsets: tuple[tuple[int, int], ...]

    def cursor(self) -> GroupCursor:
        """As the broker takes it."""
        return GroupCursor(
            group=self.group,
            instance=self.instance,
            incarnation=self.incarnation,
            epoch=self.epoch,
            generation=self.generation,
            timeout_ms=self.timeout_ms,
            commit_on_get=self.commit_on_get,
            offsets=self.offsets,
        )


def of_group(stream: UUID, expires_ms: int, cursor: GroupCursor) -> InstanceCursor:
    """What is signed for an instance."""
    return InstanceCursor(
        stream.bytes,
        expires_ms,
        cursor.group,
        cursor.instance,
        cursor.incarnation,
        cursor.epoch,
        cursor.generation,
        cursor.timeout_ms,
        cursor.commit_on_get,
        cursor.offsets,
    )


Cursor = PartitionCursor | InstanceCursor
_pack = msgspec.msgpack.Encoder().encode
_unpack: Callable[[bytes], Cursor] = msgspec.msgpack.Decoder(Cursor).decode


class Signer:
    """Makes and reads tokens with one secret."""

    def __init__(self, secret: bytes) -> None:
        """Use `secret`, `SECRET_SIZE` random bytes."""
        self._secret = secret

    def _mac(self, content: bytes) -> bytes:
        return hmac.digest(self._secret, content, "sha256")[:_MAC]

    def sign(self, cursor: Cursor) -> str:
        """The token. Raises ValueError when it would be longer than `LONGEST`; `most_offsets` tells what fits."""
        content = _pack(cursor)
        if _MAC + len(content) > _MOST_BYTES:
            raise ValueError(f"a cursor of {len(content)} bytes does not fit into {LONGEST} characters")
        # The header of MessagePack's list comes first, so that a token begins with a letter: with a dash in front it
        # would be an option to Oracle's command line.
        return b64encode(content + self._mac(content), _URL_SAFE).rstrip(b"=").decode("ascii")

    def read(self, token: str) -> Cursor:
        """What the token says. Raises InvalidCursor for anything that `sign` did not make."""
        if not 0 < len(token) <= LONGEST:
            raise InvalidCursor(f"{len(token)} characters")
        try:
            # Padding is what some clients put back; anything else must be as it was made, to the last bit.
            text = token.encode("ascii").rstrip(b"=")
            signed = b64decode(text + b"=" * (-len(text) % 4), _URL_SAFE, validate=True)
        except ValueError:
            raise InvalidCursor("not base64") from None
        content, mac = signed[:-_MAC], signed[-_MAC:]
        if not hmac.compare_digest(mac, self._mac(content)):
            raise InvalidCursor("not signed with this secret")
        if b64encode(signed, _URL_SAFE).rstrip(b"=") != text:
            raise InvalidCursor("bits that mean nothing are set")
        try:
            return _unpack(content)
        except msgspec.DecodeError:
            raise InvalidCursor("made by another version") from None


def most_offsets(group: str, instance: str, partitions: int) -> int:
    """How many (partition, offset) pairs an instance's cursor can carry, whatever else changes in it; at least 5.

    Args:
        group: the group's name, at most `LONGEST_NAME` bytes.
        instance: the instance's name, likewise.
        partitions: of the stream.
    """
    empty = InstanceCursor(
        bytes(16), _LARGEST, group, instance, _LARGEST, _LARGEST, _LARGEST, 2**31 - 1, commit_on_get=True, offsets=()
    )
    pair = len(_pack((max(partitions - 1, 0), _LARGEST)))
    list_header = 2  # two bytes more when there are more than 15 pairs
    room = _MOST_BYTES - _MAC - len(_pack(empty)) - list_header
    return min(partitions, room // pair)


def expired(cursor: Cursor, now_ms: int) -> bool:
    """Whether the cursor's time is over."""
    return now_ms > cursor.expires_ms


__all__ = [
    "LONGEST",
    "LONGEST_NAME",
    "SECRET_SIZE",
    "Cursor",
    "InstanceCursor",
    "InvalidCursor",
    "PartitionCursor",
    "Signer",
    "expired",
    "most_offsets",
    "of_group",
]
