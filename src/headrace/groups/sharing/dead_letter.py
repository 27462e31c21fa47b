"""Records of dead letter topics: headers with the origin of a record, by KIP-1191's names. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

Headers = Iterable[tuple[str, bytes | None]]

PREFIX = "__dlq.errors."
_TOPIC, _PARTITION, _OFFSET = (PREFIX + name for name in ("topic", "partition", "offset"))
_GROUP, _COUNT, _MESSAGE = (PREFIX + name for name in ("group", "delivery.count", "message"))


class Origin(NamedTuple):
    """Where a dead letter comes from."""

    topic: str
    partition: int
    offset: int
    group: str
    delivery_count: int
    message: str
    """Reason (`reason`)."""


def reason(delivery_count: int, limit: int) -> str:
    """Return why a record became a dead letter."""
    if delivery_count >= limit:
        return f"delivered {delivery_count} times without being accepted (limit {limit})"
    return "rejected by a member"


def headers_of(origin: Origin, own: Headers = ()) -> tuple[tuple[str, bytes | None], ...]:
    """Return the headers of a dead letter: those of its record, then its origin."""
    found = zip(
        (_TOPIC, _PARTITION, _OFFSET, _GROUP, _COUNT, _MESSAGE),
        (str(value).encode() for value in origin),
        strict=True,
    )
    return (*own_headers(own), *found)


def own_headers(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """Return the headers that a record had before it became a dead letter."""
    return tuple((name, value) for name, value in headers if not name.startswith(PREFIX))


def origin_of(headers: Headers) -> Origin | None:
    """Return the origin of a dead letter, or None for other records."""
    found = {name: value for name, value in headers if name.startswith(PREFIX) and value is not None}
    try:
        return Origin(
            found[_TOPIC].decode(),
            int(found[_PARTITION]),
            int(found[_OFFSET]),
            found[_GROUP].decode(),
            int(found.get(_COUNT, b"0")),
            found.get(_MESSAGE, b"").decode(errors="replace"),
        )
    except (KeyError, ValueError):
        return None
