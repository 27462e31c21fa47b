"""Where one connection stands with logging in: SASL PLAIN, as KIP-43 and KIP-152 carry it.

Handshake first, which names the mechanism; then the token, in SaslAuthenticate, or bare in a frame of its own after
version 0 of the handshake. Whatever else comes in between ends the connection, as in Kafka.
"""

from enum import Enum, auto

from headrace.broker.logins import Admitted, LoginRefused, Logins
from headrace.kafka.errors import Code

MECHANISMS = ("PLAIN",)
MOST_LOGIN_BYTES = 512 << 10
"""Bytes of a frame before a login, as Kafka's `sasl.server.max.receive.size`: strangers get little memory."""

_SASL_HANDSHAKE, _API_VERSIONS, _SASL_AUTHENTICATE = 17, 18, 36
_MALFORMED = "Authentication failed: a PLAIN token is <nothing or the user name> NUL <user name> NUL <password>"


class _Step(Enum):
    OPEN = auto()
    """Nobody has logged in, and nobody has to."""
    WANTED = auto()
    """Nobody has logged in, and nothing is served before."""
    TOKEN = auto()
    """A mechanism was agreed on; SaslAuthenticate comes next."""
    RAW = auto()
    """A mechanism was agreed on by version 0; the next frame is the token."""
    DONE = auto()


_ADMITTED = {
    _Step.WANTED: frozenset({_API_VERSIONS, _SASL_HANDSHAKE}),
    _Step.TOKEN: frozenset({_SASL_AUTHENTICATE}),
}


class Login:
    """One connection's state of logging in."""

    __slots__ = ("_logins", "_step", "pending", "raw")

    def __init__(self, logins: Logins | None) -> None:
        """`logins` None: nobody can log in here, and nobody has to."""
        self._logins = logins
        self._step = _Step.OPEN
        self.pending = False
        """Whether requests have to be admitted."""
        self.raw = False
        """Whether the next frame is a token and no request."""
        if logins is not None and logins.required:
            self._go(_Step.WANTED)

    def _go(self, step: _Step) -> None:
        self._step = step
        self.pending = step not in {_Step.OPEN, _Step.DONE}
        self.raw = step is _Step.RAW

    def admits(self, api_key: int) -> bool:
        """Whether a request of this kind may come now; only asked while `pending`."""
        return api_key in _ADMITTED.get(self._step, ())

    def begin(self, mechanism: str, version: int) -> Code:
        """Agree on a mechanism (SaslHandshake); anything but NONE leaves things as they were."""
        if self._logins is None or self._step not in {_Step.OPEN, _Step.WANTED}:
            return Code.ILLEGAL_SASL_STATE
        if mechanism not in MECHANISMS:
            return Code.UNSUPPORTED_SASL_MECHANISM
        self._go(_Step.RAW if version == 0 else _Step.TOKEN)
        return Code.NONE

    @property
    def expects_token(self) -> bool:
        """Whether a mechanism was agreed on and its token is to come."""
        return self._step in {_Step.TOKEN, _Step.RAW}

    def finish(self, token: bytes) -> Admitted:
        """Check a PLAIN token (RFC 4616); whose it is and the virtual cluster it opens, from now on this connection's.

        Raises:
            LoginRefused: the connection is to be closed.
        """
        assert self._logins is not None
        username, password = _plain(token)
        admitted = self._logins.admit(username, password)
        self._go(_Step.DONE)
        return admitted


def _plain(token: bytes) -> tuple[str, str]:
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
