"""Check of bearer tokens: JSON Web Tokens (RFC 7519) signed with a known key (KIP-768)."""

import re
from collections.abc import Mapping
from typing import Any

import jwt
import msgspec

from headrace.broker.admin.users import LONGEST_NAME
from headrace.broker.logins import Bearer, LoginRefused
from headrace.broker.runtime.clock import Clock
from headrace.sasl.jwks import Key, Keys
from headrace.sasl.oauthbearer import LONGEST_TOKEN

INVALID = '{"status":"invalid_token"}'
"""Response to an invalid token (RFC 7628, 3.2.2), without the reason."""
_HALF = re.compile("[\ud800-\udfff]")
"""Lone surrogates, which JSON allows but neither responses nor files can contain."""
_LATEST_S = 1 << 40
"""Latest valid time in seconds."""


class TokenRules(msgspec.Struct, frozen=True):
    """Requirements for tokens (`sasl.oauthbearer.*`)."""

    audiences: tuple[str, ...]
    """Accepted values of `aud`; empty: any."""
    issuer: str
    """Required `iss`; empty: any."""
    sub_claim: str
    """Claim with the principal's name."""
    skew_ms: int
    """Maximum difference between the clocks of issuer and server."""


class Tokens:
    """Checks tokens."""

    def __init__(self, keys: Keys, rules: TokenRules, clock: Clock) -> None:
        self._keys = keys
        self._rules = rules
        self._clock = clock

    async def check(self, token: str) -> Bearer:
        """Return the owner of a token. Raises LoginRefused."""
        if len(token) > LONGEST_TOKEN:
            raise _refused(f"the token has {len(token)} characters")
        try:
            header = jwt.get_unverified_header(token)
            claims = self._verified(token, await self._key(header))
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise _refused(f"the token is not good: {type(error).__name__}") from None
        return self._bearer(claims)

    async def _key(self, header: Mapping[str, Any]) -> Key:
        kid, algorithm = header.get("kid"), header.get("alg")
        found = [each for each in await self._keys.find(kid) if algorithm in each.algorithms]
        if not found:
            raise _refused(f"no key is known of id {str(kid)[:100]!r} and algorithm {str(algorithm)[:20]!r}")
        if len(found) > 1:
            raise _refused("the token does not say by which of several keys it is signed")
        return found[0]

    def _verified(self, token: str, key: Key) -> dict[str, Any]:
        rules = self._rules
        return jwt.decode(
            token,
            key.key,
            algorithms=list(key.algorithms),
            audience=rules.audiences or None,
            issuer=rules.issuer or None,
            options={
                "require": ["exp", "iat", rules.sub_claim],
                "verify_aud": bool(rules.audiences),
                "verify_iss": bool(rules.issuer),
                "verify_exp": False,
                "verify_iat": False,
                "verify_nbf": False,
                "verify_sub": False,
                "verify_jti": False,
                "enforce_minimum_key_length": True,
            },
        )

    def _bearer(self, claims: Mapping[str, Any]) -> Bearer:
        now_ms = self._clock.now_ms()
        expires_ms, issued_ms = _time(claims, "exp"), _time(claims, "iat")
        if expires_ms + self._rules.skew_ms <= now_ms:
            raise _refused(f"the token expired {(now_ms - expires_ms) // 1000} s ago")
        if max(issued_ms, _time(claims, "nbf", issued_ms)) - self._rules.skew_ms > now_ms:
            raise _refused("the token is not valid yet")
        name = claims[self._rules.sub_claim]
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or _HALF.search(name):
            raise _refused(f"its claim {self._rules.sub_claim} is no name of up to {LONGEST_NAME} characters")
        return Bearer(name, max(1, expires_ms - now_ms))


def _time(claims: Mapping[str, Any], claim: str, otherwise: int | None = None) -> int:
    seconds = claims.get(claim)
    if seconds is None and otherwise is not None:
        return otherwise
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= _LATEST_S:
        raise _refused(f"its claim {claim} is no time")
    return int(seconds * 1000)


def _refused(reason: str) -> LoginRefused:
    return LoginRefused(INVALID, reason)
