"""Parse storage URLs, and hide their passwords from logs, terminals and errors."""

from enum import StrEnum
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

_PORT = {"cluster": 6379, "sentinel": 26379}
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_FORMS = "redis://HOST:6379/0, unix:///PATH, redis+cluster://HOST:6379,HOST:6379 or redis+sentinel://HOST:26379,HOST:26379/NAME"


class Kind(StrEnum):
    """Kind of storage at a URL."""

    SERVER = "server"
    CLUSTER = "cluster"
    SENTINEL = "sentinel"


class StorageUrl(msgspec.Struct, frozen=True):
    """A parsed storage URL.

    `redis://`, `rediss://` and `unix://` are redis-py's. `redis+cluster://` and `redis+sentinel://` (`rediss+` for TLS)
    have comma-separated nodes. User, password and query apply to all nodes that are found.
    """

    kind: Kind
    url: str
    """The original URL."""
    nodes: tuple[tuple[str, int], ...] = ()
    """Host and port of the cluster nodes or Sentinels."""
    service: str = ""
    """Sentinels' name for the primary."""
    sentinel_login: tuple[tuple[str, str], ...] = ()
    """`username` and `password` for the Sentinels, if given."""

    @classmethod
    def parse(cls, url: str) -> "StorageUrl":
        """Parse a URL. Raises ValueError, without the URL in its text."""
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
        """Return the URL of one node for redis-py, with the same login and options."""
        parts = urlsplit(self.url)
        login, at, _ = parts.netloc.rpartition("@")
        database = [each for each in parts.path.split("/") if each][1:] if self.kind is Kind.SENTINEL else []
        options = [(name, value) for name, value in parse_qsl(parts.query) if name not in _SENTINEL_OPTIONS]
        place = f"[{host}]" if ":" in host else host
        query = f"?{urlencode(options, safe='/:')}" if options else ""
        return f"{parts.scheme.partition('+')[0]}://{login}{at}{place}:{port}/{''.join(database)}{query}"


def _check_server(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return
    if "," in parts.netloc.rpartition("@")[2]:
        raise ValueError(
            f"expected one server behind ://; for the nodes of a cluster it is {parts.scheme}+cluster://, "
            f"for Sentinels {parts.scheme}+sentinel://"
        )
    parts.port  # noqa: B018  # raises for an invalid number
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
    """Return a possibly invalid URL without passwords, for messages."""
    try:
        parts = urlsplit(url)
        secret = ("password", "sentinel_password")
        query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name not in secret], safe="/:")
    except ValueError:
        return "(a URL that cannot be read)"
    login, at, place = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    # The user without a name is also `default`.
    netloc = f"{user}@{place}" if at and user and not (colon and user == "default") else place
    return f"{parts.scheme}://{netloc}{parts.path}{'?' if query else ''}{query}"


def has_password(url: str) -> bool:
    """Return whether a storage URL has a password."""
    return without_password(url) != url and ("@" in url or "password=" in url)


def lacks_password(url: str) -> bool:
    """Return whether a storage URL has a user without a password: its colon may be missing."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    return bool(login) and ":" not in login and not any(name == "password" for name, _ in parse_qsl(parts.query))


def with_password(url: str, password: str) -> str:
    """Add a password to a URL. Raises ValueError if it has one."""
    parts = urlsplit(url)
    login, at, place = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    if colon or any(name == "password" for name, _ in parse_qsl(parts.query)):
        raise ValueError("the URL of the Redis has a password, too: leave one of them out")
    return parts._replace(netloc=f"{user if at else ''}:{quote(password, safe='')}@{place}").geturl()


def password_in(path: Path) -> str:
    """Return the first line of a file. Raises OSError, ValueError, without its content."""
    try:
        found = path.read_text("utf-8-sig").partition("\n")[0].rstrip("\r")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    if not found:
        raise ValueError("its first line is empty: it has to be the password")
    return found


def with_authority(url: str, ca: Path) -> str:
    """Add certificate authorities to a URL. Raises ValueError without TLS, or if it has some."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    if not parts.scheme.startswith("rediss"):
        raise ValueError("there is no TLS without --redis rediss://HOST:PORT")
    if any(name == "ssl_ca_certs" for name, _ in query):
        raise ValueError("the URL of --redis has ssl_ca_certs, too: leave one of them out")
    return parts._replace(query=urlencode([*query, ("ssl_ca_certs", str(ca))], safe="/:")).geturl()
