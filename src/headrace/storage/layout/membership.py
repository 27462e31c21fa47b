"""The view, heartbeats and changes as they are stored."""

import msgspec

from headrace.membership.view import Member, View

_members = msgspec.json.Decoder(tuple[Member, ...])


class Change(msgspec.Struct, frozen=True):
    """Something has changed; what it is now has to be loaded."""

    kind: str
    """`view`, `topics`, `documents` or `leaders`."""
    name: str = ""
    """The topic's name; the kinds of documents, separated by spaces; streams and leaders, in turn."""
    cluster: str = ""
    """The topic's virtual cluster."""


def encode_members(members: tuple[Member, ...]) -> bytes:
    """The members of a view as JSON."""
    return msgspec.json.encode(members, order="sorted")


def view(number: bytes | str, members: bytes | str, before: bytes | str) -> View:
    """A stored view."""
    return View(int(number), _members.decode(members), int(before))


def heartbeat_field(member: Member) -> str:
    """Where a broker's heartbeats are counted."""
    return f"{member.node_id}:{member.incarnation}"


def heartbeats(pairs: list[bytes]) -> dict[tuple[int, str], int]:
    """Everybody's heartbeats, of fields and counters in turn; what is no heartbeat is passed over."""
    found = {}
    for field, counter in zip(pairs[::2], pairs[1::2], strict=True):
        node, _, incarnation = field.decode().partition(":")
        if node.isdecimal() and counter.isdigit():
            found[int(node), incarnation] = int(counter)
    return found


def change(fields: dict[bytes, bytes]) -> Change:
    """A stored change."""
    return Change(fields.get(b"k", b"").decode(), fields.get(b"n", b"").decode(), fields.get(b"c", b"").decode())
