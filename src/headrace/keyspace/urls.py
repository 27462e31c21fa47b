"""Storage URLs as they may be shown: a Redis' password is for nobody's log, terminal or error."""

from urllib.parse import parse_qsl, urlencode, urlsplit


def without_password(url: str) -> str:
    """The URL of a Redis for people and logs: what it names, without what lets one in.

    Args:
        url: `redis://`, `rediss://` or `unix://`, as redis-py's `from_url` takes it, or anything else by mistake.
    """
    try:
        parts = urlsplit(url)
        query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name != "password"], safe="/:")
    except ValueError:
        return "(a URL that cannot be read)"
    login, at, place = parts.netloc.rpartition("@")
    user = login.partition(":")[0]
    netloc = f"{user}@{place}" if at and user else place
    return f"{parts.scheme}://{netloc}{parts.path}{'?' if query else ''}{query}"


def has_password(url: str) -> bool:
    """Whether a URL that redis-py takes holds a password."""
    return without_password(url) != url and ("@" in url or "password=" in url)
