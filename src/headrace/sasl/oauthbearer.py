"""SASL OAUTHBEARER (RFC 7628, KIP-255)."""

import re
from collections.abc import Awaitable, Callable

from headrace.broker.logins import Admitted, Answer, Bearer, LoginRefused

LONGEST_TOKEN = 16 << 10
"""Characters."""
_MOST_BYTES = LONGEST_TOKEN + (8 << 10)
_MALFORMED = "Authentication failed: an OAUTHBEARER message is n,,^Aauth=Bearer TOKEN^A^A"
_MESSAGE = re.compile(r"[ny],(?:a=(?P<identity>(?:[^=,\x00\x01]|=2C|=3D)+))?,\x01(?P<pairs>(?:[^\x00\x01]+\x01)+)\x01")
_PAIR = re.compile(r"(?P<name>[A-Za-z]+)=(?P<value>[\x21-\x7e \t\r\n]*)")
_BEARER = re.compile(r"(?i:bearer) +(?P<token>[A-Za-z0-9._~+/=-]+)")
_UNDERSTOOD = b"\x01"
"""A client's response to an error (RFC 7628, 3.2.3)."""


class OAuthBearer:
    """A login by OAUTHBEARER: one message, and a second one after an error."""

    def __init__(self, check: Callable[[str], Awaitable[Bearer]], admitted: Callable[[Bearer], Admitted]) -> None:
        self._check = check
        self._admitted = admitted
        self._refused: LoginRefused | None = None

    async def answer(self, token: bytes) -> Answer:
        """See `Mechanism`."""
        if self._refused is not None:
            if token != _UNDERSTOOD:
                raise LoginRefused(_MALFORMED, f"it goes on after this: {self._refused.reason}")
            raise self._refused
        identity, bearer_token = _parts(token)
        try:
            bearer = await self._check(bearer_token)
        except LoginRefused as refused:
            # The error is the response. The login fails at the client's next message.
            self._refused = refused
            return Answer(str(refused).encode(), refused=refused)
        if identity not in {"", bearer.name}:
            raise LoginRefused(
                "Authentication failed: the authorization id is not the token's",
                "it requests another authorization identity",
            )
        return Answer(admitted=self._admitted(bearer))


def _parts(message: bytes) -> tuple[str, str]:
    """Return authorization identity and token. Raises LoginRefused."""
    if len(message) > _MOST_BYTES:
        raise LoginRefused(_MALFORMED, f"the message has {len(message)} bytes")
    try:
        read = _MESSAGE.fullmatch(message.decode())
    except UnicodeDecodeError:
        raise LoginRefused(_MALFORMED, "the message is not UTF-8") from None
    pairs = None if read is None else [_PAIR.fullmatch(pair) for pair in read["pairs"][:-1].split("\x01")]
    if read is None or pairs is None or not all(pairs):
        raise LoginRefused(_MALFORMED, "the message is not of that form")
    # Extensions (KIP-342) are ignored.
    given = [_BEARER.fullmatch(pair["value"]) for pair in pairs if pair is not None and pair["name"] == "auth"]
    if len(given) != 1 or given[0] is None:
        raise LoginRefused(_MALFORMED, "the message has no bearer token")
    identity = (read["identity"] or "").replace("=2C", ",").replace("=3D", "=")
    return identity, given[0]["token"]
