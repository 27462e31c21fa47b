"""Paginate lists with opaque tokens. Pure.

A token holds the sort key of a page's last item, so concurrent changes neither repeat nor skip other items.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Generic, Literal, TypeVar

import msgspec

from headrace.oci.errors import OciError, invalid

T = TypeVar("T")
Key = tuple[int | str, str]
"""Sort key and id. The id makes equal keys unique."""
Order = Literal["ASC", "DESC"]
DEFAULT_LIMIT = 10
LONGEST = 1024
"""Maximum characters of a token (OCI Streaming API)."""
_ROOM = 700
"""Maximum bytes of a text in a token, as JSON. The rest takes about 60, and base64 adds a third."""
_CUT = _ROOM // len("\\u0001")
"""Characters that always fit in a token."""


class _Token(msgspec.Struct, frozen=True, array_like=True):
    sorting: str
    forward: bool
    place: tuple[int | str, str]


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of a list."""

    items: list[T]
    following: str | None
    """Token of the next page; None: this is the last one."""
    preceding: str | None

    @property
    def headers(self) -> dict[str, str]:
        """`opc-next-page` and `opc-prev-page` of existing pages."""
        found = {"opc-next-page": self.following, "opc-prev-page": self.preceding}
        return {name: token for name, token in found.items() if token is not None}


def page_of(
    items: Iterable[T], key: Callable[[T], Key], sorting: str, order: Order, limit: int | None, token: str | None
) -> Page[T]:
    """Return the page of a token; None: the first page. Raises OciError 400 for an invalid token.

    A token is valid only for its sorting. Long texts are sorted by prefix, then by id.
    """
    placed = sorted(((_told(key(item)), item) for item in items), key=itemgetter(0), reverse=order == "DESC")
    ordered, places = [item for _, item in placed], [place for place, _ in placed]
    sorting = f"{sorting} {order}"
    most = limit or DEFAULT_LIMIT
    start, end = 0, most
    if token is not None:
        found = _read(token, sorting)
        if places and type(found.place[0]) is not type(places[0][0]):
            raise _no_token()
        if found.forward:
            passed = sum(not _beyond(place, found.place, order) for place in places)
            start, end = passed, passed + most
        else:
            end = sum(_beyond(found.place, place, order) for place in places)
            start = max(0, end - most)
    chosen, their = ordered[start:end], places[start:end]
    return Page(
        chosen,
        _write(_Token(sorting, True, their[-1])) if chosen and end < len(ordered) else None,
        _write(_Token(sorting, False, their[0])) if chosen and start > 0 else None,
    )


def _told(key: Key) -> Key:
    text, unique = key
    if isinstance(text, str) and len(text) > _CUT and len(msgspec.json.encode(text)) > _ROOM:
        return text[:_CUT], unique
    return key


def _beyond(place: Key, other: Key, order: Order) -> bool:
    return place > other if order == "ASC" else place < other


def _write(token: _Token) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).rstrip(b"=").decode()


def _read(text: str, sorting: str) -> _Token:
    try:
        token = msgspec.json.decode(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True), type=_Token)
    except (msgspec.DecodeError, binascii.Error, ValueError):
        raise _no_token() from None
    if token.sorting != sorting:
        raise invalid("Invalid query parameter page: it belongs to a list that is sorted otherwise")
    return token


def _no_token() -> OciError:
    return invalid("Invalid query parameter page: it is no token that a page was given with")
