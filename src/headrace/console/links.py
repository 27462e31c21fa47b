"""Paths of pages. Names are whatever somebody sent: each is written so that it comes back as it was. Pure."""

from collections.abc import Mapping
from urllib.parse import quote, unquote

from headrace.broker.clusters import DEFAULT


def name_in(text: str) -> str:
    """A name as it stands in a path."""
    return quote(text, safe="", errors="surrogatepass")


def name_of(part: str) -> str:
    """The inverse of `name_in`; bytes that are no UTF-8 are kept apart."""
    return unquote(part, errors="surrogateescape" if "%ED" not in part.upper() else "surrogatepass")


def link(path: str, cluster: str = DEFAULT, query: Mapping[str, object] | None = None) -> str:
    """A path with its query; nothing is said of the default virtual cluster, or of what is None."""
    told = {} if cluster == DEFAULT else {"cluster": cluster}
    told |= {name: str(value) for name, value in (query or {}).items() if value not in {None, ""}}
    parts = [f"{name_in(name)}={name_in(value)}" for name, value in told.items()]
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
