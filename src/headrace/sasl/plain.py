"""SASL PLAIN (RFC 4616): a name and a password as they are."""

from collections.abc import Awaitable, Callable

from headrace.broker.admin.logins import Admitted, Answer, LoginRefused

_MOST_BYTES = 64 << 10
_MALFORMED = "Authentication failed: a PLAIN token is <nothing or the user name> NUL <user name> NUL <password>"


class Plain:
    """A login by PLAIN."""

    def __init__(self, admit: Callable[[str, str], Awaitable[Admitted]]) -> None:
        """Prepare. `admit`: who has this name and this password; raises LoginRefused."""
        self._admit = admit

    async def answer(self, token: bytes) -> Answer:
        """See `Mechanism`: there is one token."""
        return Answer(admitted=await self._admit(*_parts(token)))


def _parts(token: bytes) -> tuple[str, str]:
    if len(token) > _MOST_BYTES:
        raise LoginRefused(_MALFORMED, f"the token has {len(token)} bytes")
    try:
        parts = token.decode().split("\0")
    except UnicodeDecodeError:
        raise LoginRefused(_MALFORMED, "the token is not UTF-8") from None
    if len(parts) != 3:
        raise LoginRefused(_MALFORMED, f"the token has {len(parts)} parts, not 3")
    identity, username, password = parts
    if not username or not password:
        raise LoginRefused(
            f"Authentication failed: {'password' if username else 'username'} not specified", "half a token"
        )
    if identity not in {"", username}:
        raise LoginRefused(
            "Authentication failed: the authorization id is not the user name", "it asks to act for somebody else"
        )
    return username, password
