"""Storage URLs: what they name, and as they may be shown. A Redis' password is for nobody's log, terminal or error."""

from enum import StrEnum
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

_PORT = {"cluster": 6379, "sentinel": 26379}
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_FORMS = "redis://HOST:6379/0, unix:///PATH, redis+cluster://HOST:6379,HOST:6379 or redis+sentinel://HOST:26379,HOST:26379/NAME"


class Kind(StrEnum):
    """What there is at a storage URL."""

    SERVER = "server"
    CLUSTER = "cluster"
    SENTINEL = "sentinel"


class StorageUrl(msgspec.Struct, frozen=True):
    """A storage URL, taken apart.

    `redis://`, `rediss://` and `unix://` are redis-py's own. `redis+cluster://` and `redis+sentinel://` (`rediss+` for
    TLS) name nodes with commas between, as the library `limits` and others have it; user, password and query are
    those of every node that is found through them.
    """

    kind: Kind
    url: str
    """As it was given."""
    nodes: tuple[tuple[str, int], ...] = ()
    """Of a cluster or of its Sentinels: host and port of each."""
    service: str = ""
    """The name that Sentinels have for the primary."""
    sentinel_login: tuple[tuple[str, str], ...] = ()
    """`username` and `password` for the Sentinels themselves, as far as they are given."""

    @classmethod
    def parse(cls, url: str) -> "StorageUrl":
        """Take a URL apart. Raises ValueError: what is wrong with it, without repeating it."""
        scheme = url.partition("://")[0]
        if scheme in ("redis", "rediss", "unix"):
            _check_server(url)
            return cls(Kind.SERVER, url)
        base, plus, found = scheme.partition("+")
        if not plus or base not in ("redis", "rediss") or found not in _PORT:
            raise ValueError(f"expected a URL like {_FORMS}")
        parts = urlsplit(url)
        nodes = tuple(_node(text, _PORT[found]) for text in parts.netloc.rpartition("@")[2].split(","))
        path = [unquote(each) for each in parts.path.split("/") if each]
        if found == Kind.CLUSTER:
            if path not in ([], ["0"]):
                raise ValueError("a Redis Cluster has no database but 0: end the URL behind the nodes")
            return cls(Kind.CLUSTER, url, nodes)
        if not path or len(path) > 2:
            raise ValueError(
                "expected the name of the primary behind the Sentinels, as in redis+sentinel://HOST:26379/NAME"
            )
        query = dict(parse_qsl(parts.query))
        login = tuple((name.removeprefix("sentinel_"), query[name]) for name in _SENTINEL_OPTIONS if name in query)
        return cls(Kind.SENTINEL, url, nodes, path[0], login)

    def at(self, host: str, port: int) -> str:
        """The URL of one node, as redis-py's `from_url` takes it: the same login, the same options."""
        parts = urlsplit(self.url)
        login, at, _ = parts.netloc.rpartition("@")
        database = [each for each in parts.path.split("/") if each][1:] if self.kind is Kind.SENTINEL else []
        options = [(name, value) for name, value in parse_qsl(parts.query) if name not in _SENTINEL_OPTIONS]
        place = f"[{host}]" if ":" in host else host
        query = f"?{urlencode(options, safe='/:')}" if options else ""
        return f"{parts.scheme.partition('+')[0]}://{login}{at}{place}:{port}/{''.join(database)}{query}"


def _check_server(url: str) -> None:
    """Raises ValueError for what redis-py would pass over, or tell in other words than ours."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return
    if "," in parts.netloc.rpartition("@")[2]:
        raise ValueError(
            f"expected one server behind ://; for the nodes of a cluster it is {parts.scheme}+cluster://, "
            f"for Sentinels {parts.scheme}+sentinel://"
        )
    parts.port  # noqa: B018  # raises where it is no number
    database = parts.path.removeprefix("/")
    if database and not database.isdecimal():
        raise ValueError(f"expected the number of a database behind the server, as in {parts.scheme}://HOST:6379/0")


def _node(text: str, port: int) -> tuple[str, int]:
    try:
        found = urlsplit(f"//{text}")
        host, number = found.hostname, found.port
    except ValueError:
        host, number = None, None
    if not host:
        raise ValueError("expected HOST:PORT,HOST:PORT behind ://")
    return host, number or port


def without_password(url: str) -> str:
    """The URL of a Redis for people and logs: what it names, without what lets one in.

    Args:
        url: as `StorageUrl.parse` takes it, or anything else by mistake.
    """
    try:
        parts = urlsplit(url)
        secret = ("password", "sentinel_password")
        query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name not in secret], safe="/:")
    except ValueError:
        return "(a URL that cannot be read)"
    login, at, place = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    # Redis has a user of that name, which one is without a name, too.
    netloc = f"{user}@{place}" if at and user and not (colon and user == "default") else place
    return f"{parts.scheme}://{netloc}{parts.path}{'?' if query else ''}{query}"


def has_password(url: str) -> bool:
    """Whether a storage URL holds a password."""
    return without_password(url) != url and ("@" in url or "password=" in url)


def lacks_password(url: str) -> bool:
    """Whether a storage URL names a user and no password. It may be the password, whose colon was forgotten."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    return bool(login) and ":" not in login and not any(name == "password" for name, _ in parse_qsl(parts.query))


def with_password(url: str, password: str) -> str:
    """The URL with a password in it, for the user that it names; raises ValueError where it has one already."""
    parts = urlsplit(url)
    login, at, place = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    if colon or any(name == "password" for name, _ in parse_qsl(parts.query)):
        raise ValueError("the URL of the Redis has a password, too: leave one of them out")
    return parts._replace(netloc=f"{user if at else ''}:{quote(password, safe='')}@{place}").geturl()


def password_in(path: Path) -> str:
    """The first line of a file; raises OSError, ValueError, with nothing of what is in it."""
    try:
        found = path.read_text("utf-8-sig").partition("\n")[0].rstrip("\r")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    if not found:
        raise ValueError("its first line is empty: it has to be the password")
    return found


def with_authority(url: str, ca: Path) -> str:
    """The URL of a Redis with TLS, whose certificate may be of these authorities; raises ValueError for others."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    if not parts.scheme.startswith("rediss"):
        raise ValueError("there is no TLS without --redis rediss://HOST:PORT")
    if any(name == "ssl_ca_certs" for name, _ in query):
        raise ValueError("the URL of --redis has ssl_ca_certs, too: leave one of them out")
    return parts._replace(query=urlencode([*query, ("ssl_ca_certs", str(ca))], safe="/:")).geturl()
