"""SCRAM (RFC 5802). scramp computes the proofs, which takes a few hashes."""

from collections.abc import Callable

from scramp import ScramException, ScramMechanism

from headrace.broker.admin.users import LONGEST_NAME, Users
from headrace.broker.logins import Admitted, Answer, LoginRefused
from headrace.security.access.credentials import Mechanism

_MOST_BYTES = 4 << 10
_MALFORMED = "Authentication failed: that is no message of {}"
_WRONG = "Authentication failed during authentication due to invalid credentials with SASL mechanism {}"


class Scram:
    """A login by SCRAM: two tokens, each with a response."""

    def __init__(self, mechanism: Mechanism, users: Users, admitted: Callable[[str], Admitted]) -> None:
        self._mechanism = mechanism
        self._users = users
        self._admitted = admitted
        self._name = ""
        self._server = ScramMechanism(mechanism.value).make_server(self._credential)
        self._begun = False

    def _credential(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self._name = name
        kept = self._users.shown(name[:LONGEST_NAME], self._mechanism)
        return kept.salt, kept.stored_key, kept.server_key, kept.iterations

    async def answer(self, token: bytes) -> Answer:
        """See `Mechanism`."""
        mechanism = self._mechanism.value
        if len(token) > _MOST_BYTES:
            raise LoginRefused(_MALFORMED.format(mechanism), f"the message has {len(token)} bytes")
        try:
            text = token.decode()
            if not self._begun:
                self._begun = True
                self._server.set_client_first(text)
                return Answer(self._server.get_server_first().encode())
            self._server.set_client_final(text)
            final = self._server.get_server_final().encode()
        except (ScramException, UnicodeDecodeError, ValueError) as error:
            if self._begun and self._name:
                raise LoginRefused(_WRONG.format(mechanism), f"user {self._name[:300]!r}: {_reason(error)}") from None
            raise LoginRefused(_MALFORMED.format(mechanism), _reason(error)) from None
        if not self._users.find(self._name):
            # Its credential was invented, or was deleted during the login.
            raise LoginRefused(_WRONG.format(mechanism), f"there is no user {self._name[:300]!r}")
        return Answer(final, self._admitted(self._name))


def _reason(error: Exception) -> str:
    found = getattr(error, "server_error", None)
    return str(found.value if found is not None else type(error).__name__)
