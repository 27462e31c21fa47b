"""Public keys of token signatures: a JSON Web Key Set (RFC 7517) from a file or URL.

Keys are read again after a change of the file, after the refresh time, or for an unknown key id. Rereads are
rate-limited, as any client can send tokens.
"""

import asyncio
import ipaddress
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import jwt
import msgspec
import structlog

from headrace.broker.runtime.clock import Clock, pause

_MOST_BYTES = 256 << 10
_TIMEOUT_S = 5
_AGAIN_MS = 10_000
"""Milliseconds between attempts to read keys, as in Kafka's `RefreshingHttpsJwks`."""
_HEADERS = {"accept": "application/jwk-set+json, application/json", "user-agent": "headrace"}
_ALGORITHMS: dict[tuple[str, str | None], tuple[str, ...]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
}
"""Algorithms by key type (RFC 7518). Shared secrets are excluded: a verifier could sign."""
_log = structlog.get_logger("headrace.sasl")

Stamp = tuple[int, int, int]


class Key(msgspec.Struct, frozen=True):
    """A public key."""

    kid: str
    algorithms: tuple[str, ...]
    """Algorithms allowed for this key."""
    key: Any
    """Key object for PyJWT."""


class KeysUnreadable(Exception):
    """The key set is unreadable, as the message states."""


def checked(url: str, *, insecure: bool) -> str:
    """Return the URL of a key set. Raises ValueError if it is invalid.

    Plain HTTP is for loopback or `headrace.insecure`: an attacker who replaces the keys can impersonate any user.
    """
    place = urlsplit(url)
    if place.scheme == "file" and place.path.startswith("/") and place.netloc in {"", "localhost"}:
        return url
    if place.scheme == "https" and place.hostname:
        return url
    if place.scheme == "http" and place.hostname:
        if insecure or _is_loopback(place.hostname):
            return url
        raise ValueError(
            f"sasl.oauthbearer.jwks.endpoint.url={url}: a man in the middle could replace the keys: use https"
        )
    raise ValueError(f"sasl.oauthbearer.jwks.endpoint.url={url}: expected https://HOST/PATH or file:///PATH")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Keys:
    """Cached keys of a key set."""

    def __init__(self, url: str, refresh_ms: int, clock: Clock) -> None:
        place = urlsplit(url)
        self._url = url
        self._file = Path(unquote(place.path)) if place.scheme == "file" else None
        self._refresh_ms = refresh_ms
        self._clock = clock
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="keys")
        self._keys: tuple[Key, ...] = ()
        self._stamp: Stamp | None = None
        self._tried_stamp: Stamp | None = None
        self._read_at: int | None = None
        self._tried_at: int | None = None
        self._reading: asyncio.Future[None] | None = None

    def close(self) -> None:
        """Stop reading keys."""
        if self._reading is not None:
            self._reading.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def load(self) -> None:
        """Read the keys. After KeysUnreadable, earlier keys are kept."""
        self._tried_at = self._clock.ticks_ms()
        stamp = self._tried_stamp = None if self._file is None else _stamp(self._file)
        loop = asyncio.get_running_loop()
        read = self._from_file if self._file is not None else self._from_address
        self._keys = await loop.run_in_executor(self._threads, read)
        self._stamp = stamp
        self._read_at = self._clock.ticks_ms()

    async def find(self, kid: str | None) -> Sequence[Key]:
        """Return the keys with this id, or all without one. For an unknown id, read the set again.

        A known id never waits for a slow URL.
        """
        found = self._of(kid)
        if found and self._file is None:
            if self._old():
                self._begin()
            return found
        if self._reading is not None or self._old() or (not found and self._may_try()):
            await self._again()
            found = self._of(kid)
        return found

    def _of(self, kid: str | None) -> Sequence[Key]:
        return [each for each in self._keys if kid is None or each.kid == kid]

    def _old(self) -> bool:
        if self._file is not None:
            stamp = _stamp(self._file)
            # Do not retry a failed read for each token.
            return stamp != self._stamp and (stamp != self._tried_stamp or self._may_try())
        passed = None if self._read_at is None else self._clock.ticks_ms() - self._read_at
        return (passed is None or passed >= self._refresh_ms) and self._may_try()

    def _may_try(self) -> bool:
        return self._tried_at is None or self._clock.ticks_ms() - self._tried_at >= _AGAIN_MS

    async def _again(self) -> None:
        reading, late = self._begin(), asyncio.ensure_future(pause(self._clock, _TIMEOUT_S * 1000))
        try:
            await asyncio.wait({reading, late}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            late.cancel()

    def _begin(self) -> asyncio.Future[None]:
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._try())
        return self._reading

    async def _try(self) -> None:
        try:
            await self.load()
        except KeysUnreadable as error:
            _log.error("the token keys (JWKS) cannot be loaded; the previous keys stay in use", reason=str(error))
        finally:
            self._reading = None

    def _from_file(self) -> tuple[Key, ...]:
        assert self._file is not None
        try:
            with self._file.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
        except OSError as error:
            raise KeysUnreadable(f"{self._url}: {error.strerror}") from None
        return _parsed(self._url, content)

    def _from_address(self) -> tuple[Key, ...]:
        try:
            opener = urllib.request.build_opener(_Here)
            request = urllib.request.Request(self._url, headers=_HEADERS)  # `checked` has verified the scheme
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                content = answer.read(_MOST_BYTES + 1)
        except (OSError, HTTPException, ValueError) as error:
            raise KeysUnreadable(f"{self._url}: {error or type(error).__name__}") from None
        return _parsed(self._url, content)


class _Here(urllib.request.HTTPRedirectHandler):
    """Rejects redirects, whose targets are unchecked."""

    def redirect_request(self, *_args: object) -> None:
        return None


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _parsed(url: str, content: bytes) -> tuple[Key, ...]:
    if len(content) > _MOST_BYTES:
        raise KeysUnreadable(f"{url}: more than {_MOST_BYTES} bytes, which no key set has")
    try:
        entries = msgspec.json.decode(content, type=dict[str, Any])["keys"]
        found = tuple(key for entry in entries if (key := _key(entry)) is not None)
    except (msgspec.MsgspecError, KeyError, TypeError, RecursionError):
        raise KeysUnreadable(f"{url}: expected a JSON Web Key Set, {{'keys': [...]}}, found otherwise") from None
    if not found:
        raise KeysUnreadable(f"{url}: none of its keys is a public key for signatures (RSA, EC or OKP)")
    return found


def _key(entry: Any) -> Key | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    kind, curve = entry.get("kty"), entry.get("crv")
    if not isinstance(kind, str) or not isinstance(curve, str | None):
        return None
    algorithms = _ALGORITHMS.get((kind, curve), ())
    if "alg" in entry:
        algorithms = tuple(each for each in algorithms if each == entry["alg"])
    if not algorithms:
        return None
    try:
        key = jwt.PyJWK.from_dict(entry, algorithms[0]).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
        _log.warning("a token key cannot be used", kid=str(entry.get("kid"))[:100], reason=type(error).__name__)
        return None
    if hasattr(key, "public_key"):
        _log.warning("a token key is a private key; only its public half is used", kid=str(entry.get("kid"))[:100])
        key = key.public_key()
    kid = entry.get("kid", "")
    return Key(kid if isinstance(kid, str) else "", algorithms, key)
