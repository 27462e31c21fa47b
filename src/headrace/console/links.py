"""Paths of pages. Names are whatever somebody sent: each is written so that it comes back as it was. Pure."""

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from headrace.broker.virtual_clusters import DEFAULT

_DOTS = re.compile(r"~*\.\.?")
"""Names that a path has with one `~` more: browsers take `.` and `..` out of a path, written as `%2E` too."""


def name_in(text: str) -> str:
    """A name as it stands in a path."""
    return _quoted("~" + text if _DOTS.fullmatch(text) else text)


def name_of(part: str) -> str:
    """The inverse of `name_in`; bytes that are no UTF-8 are kept apart."""
    text = unquote(part, errors="surrogateescape" if "%ED" not in part.upper() else "surrogatepass")
    return text.removeprefix("~") if _DOTS.fullmatch(text) else text


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


def link(path: str, cluster: str = DEFAULT, query: Mapping[str, object] | None = None) -> str:
    """A path with its query; nothing is said of the default virtual cluster, or of what is None."""
    told = {} if cluster == DEFAULT else {"cluster": cluster}
    told |= {name: str(value) for name, value in (query or {}).items() if value not in {None, ""}}
    parts = [f"{_quoted(name)}={_quoted(value)}" for name, value in told.items()]
    return path + ("?" + "&".join(parts) if parts else "")


def topic(name: str, cluster: str = DEFAULT) -> str:
    """A topic's page."""
    return link(f"/topics/{name_in(name)}", cluster)


def records(name: str, cluster: str = DEFAULT, **query: object) -> str:
    """A topic's records."""
    return link(f"/topics/{name_in(name)}/records", cluster, query)


def group(name: str, cluster: str = DEFAULT, **query: object) -> str:
    """A group's page."""
    return link(f"/groups/{name_in(name)}", cluster, query)
