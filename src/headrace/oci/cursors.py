"""Encode cursors as signed tokens, so that the server keeps no state for them. Pure.

A token is MessagePack and 16 bytes of HMAC-SHA256, in unpadded URL-safe base64. It has about 100 characters for a
partition, and at most 1,024 for an instance.
"""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable
from uuid import UUID

import msgspec

from headrace.groups.instances.model import GroupCursor

LONGEST = 1024
"""Maximum characters of a cursor (OCI Streaming API)."""
LONGEST_NAME = 255
"""Maximum UTF-8 bytes of a group or instance name."""
SECRET_SIZE = 32

_MAC = 16
_MOST_BYTES = LONGEST * 3 // 4
_LARGEST = 2**63 - 1
_URL_SAFE = b"-_"


class InvalidCursor(Exception):
    """Not a token of this secret."""


class PartitionCursor(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The cursor of a partition."""

    stream: bytes
    """The 16 bytes of the topic's id."""
    expires_ms: int
    partition: int
    offset: int
    """The next offset to read."""
    not_before_ms: int | None = None
    """Records before this time are skipped (AT_TIME in the future)."""
    leader_epoch: int = -1
    """Leader epoch of the log when the cursor was made, used to detect lost records; -1: unknown."""


class InstanceCursor(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """An instance's `GroupCursor` with stream and expiry time."""

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
        """Return the broker's form."""
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
    """Return the cursor of an instance."""
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
    """Signs and reads tokens."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def _mac(self, content: bytes) -> bytes:
        return hmac.digest(self._secret, content, "sha256")[:_MAC]

    def sign(self, cursor: Cursor) -> str:
        """Return the token. Raises ValueError if it exceeds `LONGEST`; see `most_offsets`."""
        content = _pack(cursor)
        if _MAC + len(content) > _MOST_BYTES:
            raise ValueError(f"a cursor of {len(content)} bytes does not fit into {LONGEST} characters")
        # MessagePack's list header comes first, so that the token starts with a letter, not with a dash, which
        # Oracle's CLI would parse as an option.
        return b64encode(content + self._mac(content), _URL_SAFE).rstrip(b"=").decode("ascii")

    def read(self, token: str) -> Cursor:
        """Return the decoded cursor. Raises InvalidCursor."""
        if not 0 < len(token) <= LONGEST:
            raise InvalidCursor(f"{len(token)} characters")
        try:
            # Some clients restore the padding.
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
    """Return how many (partition, offset) pairs always fit in an instance's cursor, at least 5."""
    empty = InstanceCursor(
        bytes(16), _LARGEST, group, instance, _LARGEST, _LARGEST, _LARGEST, 2**31 - 1, commit_on_get=True, offsets=()
    )
    pair = len(_pack((max(partitions - 1, 0), _LARGEST)))
    list_header = 2  # its additional bytes above 15 pairs
    room = _MOST_BYTES - _MAC - len(_pack(empty)) - list_header
    return min(partitions, room // pair)


def expired(cursor: Cursor, now_ms: int) -> bool:
    """Return whether the cursor has expired."""
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
