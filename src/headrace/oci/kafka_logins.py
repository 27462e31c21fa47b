"""Authenticate Kafka clients as OCI Streaming does: SASL PLAIN with a stream pool in the user name.

The password is an auth token of the user. The pool selects the virtual cluster. Source: Oracle Cloud Infrastructure,
"Using Streaming with Apache Kafka".
"""

import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path

import structlog

from headrace.broker.broker import Broker
from headrace.broker.logins import Admitted, LoginRefused
from headrace.oci import ocids
from headrace.oci.settings import OciSettings
from headrace.security.access.principal import Principal

_log = structlog.get_logger("headrace.oci")

_FORM = "the user name has to be <tenancy>/[<domain>/]<user>/<OCID of a stream pool>"
_WRONG = "Authentication failed: invalid username or password"
_UNVERIFIED = "Authentication failed: no auth token is verified at this listener; the server needs oci.auth=verify"
_CLOSED = "Authentication failed: {reason}"
_HASHED = "sha256:"


def is_pool_name(username: str) -> bool:
    """Return whether a name is `<tenancy>/[<domain>/]<user>/<OCID of a stream pool>`."""
    user, _, pool = username.rpartition("/")
    tenancy, _, rest = user.partition("/")
    return bool(tenancy and rest) and ocids.unique_of(pool, ocids.STREAM_POOL) is not None


class PoolLogins:
    """Logins of stream pools."""

    def __init__(
        self, settings: OciSettings, cluster_of_pool: Callable[[str], Broker | None], *, any_token: bool = True
    ) -> None:
        """With `any_token` accept any token unless `oci.auth` is `verify`."""
        self._cluster_of_pool = cluster_of_pool
        self._any_token = any_token
        self._closed = settings.closed
        self._tokens = TokenFile(Path(settings.auth_tokens)) if settings.auth == "verify" else None

    def admit(self, username: str, password: str) -> Admitted:
        """Return the user and virtual cluster of a login. Raises LoginRefused."""
        if not is_pool_name(username):
            raise LoginRefused(f"Authentication failed: {_FORM}", f"user name {username[:300]!r}")
        if self._closed:
            raise LoginRefused(_CLOSED.format(reason=self._closed), "the OCI API is closed")
        user, _, pool = username.rpartition("/")
        tenancy, _, _ = user.partition("/")
        if self._tokens is None and not self._any_token:
            raise LoginRefused(_UNVERIFIED, "other machines reach this listener, and oci.auth verifies no token")
        if self._tokens is not None and not self._tokens.has(user, password):
            raise LoginRefused(_WRONG, f"{user[:300]!r} has no such auth token")
        broker = self._cluster_of_pool(pool)
        if broker is None:
            raise LoginRefused(_WRONG, f"there is no stream pool {pool[:300]}")
        return Admitted(Principal(user, tenancy), broker)


class TokenFile:
    """A file of auth tokens, read on first use and after a change.

    A line has a user, blanks, and a token or `sha256:` with its SHA-256 in hexadecimal. Users may have several lines.
    Empty lines and lines that start with `#` are ignored.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[str, list[bytes]] = {}

    def has(self, user: str, token: str) -> bool:
        """Return whether this is a token of the user."""
        self._read()
        digest = hashlib.sha256(token.encode()).digest()
        # A plain hash is safe for long random tokens.
        return any(hmac.compare_digest(digest, known) for known in self._known.get(user, ()))

    def _read(self) -> None:
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return
            lines = self._path.read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            _log.warning("the file of auth tokens (oci.auth.tokens) cannot be read", reason=str(error))
            self._stamp, self._known = None, {}
            return
        self._stamp, self._known = stamp, {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            user, *rest = line.split(maxsplit=1)
            digest = _digest(rest[0].strip()) if rest else None
            if digest is None:
                _log.warning("a line of the auth token file is invalid", file=str(self._path), line=number)
            else:
                self._known.setdefault(user, []).append(digest)


def _digest(token: str) -> bytes | None:
    if not token.startswith(_HASHED):
        return hashlib.sha256(token.encode()).digest()
    try:
        digest = bytes.fromhex(token.removeprefix(_HASHED))
    except ValueError:
        return None
    return digest if len(digest) == hashlib.sha256().digest_size else None
