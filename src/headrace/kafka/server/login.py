"""SASL login state of one connection (KIP-43, KIP-152, KIP-368).

Tokens follow in SaslAuthenticate requests, or bare after version 0. As in Kafka, any other request closes the
connection.
"""

from enum import Enum, auto

from headrace.broker.logins import Answer, LoginRefused, Logins, Mechanism
from headrace.broker.runtime.clock import Clock, Timer
from headrace.kafka.errors import Code
from headrace.protocol.messages import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from headrace.security.access.principal import Principal

MOST_LOGIN_BYTES = 512 << 10
"""Maximum bytes of a frame before the login, as Kafka's `sasl.server.max.receive.size`."""


class _Step(Enum):
    OPEN = auto()
    """No login is required."""
    WANTED = auto()
    """A login is required, or the last one has expired."""
    TOKEN = auto()
    """A mechanism is agreed on; SaslAuthenticate comes next."""
    RAW = auto()
    """A mechanism is agreed on by version 0; the next frame is a token."""
    CHECKING = auto()
    """A token is being checked; no frame may come before the response."""
    DONE = auto()


_ADMITTED = {
    _Step.WANTED: frozenset({ApiVersionsRequest.API_KEY, SaslHandshakeRequest.API_KEY}),
    _Step.TOKEN: frozenset({SaslAuthenticateRequest.API_KEY}),
}


class Login:
    """Login state of one connection."""

    __slots__ = ("_expiry", "_lasts", "_logins", "_mechanism", "_name", "_step", "_who", "pending", "raw", "told")

    def __init__(self, logins: Logins | None) -> None:
        """Without `logins`, login is neither possible nor required."""
        self._logins = logins
        self._step = _Step.OPEN
        self._mechanism: Mechanism | None = None
        self._name = ""  # of the mechanism
        self._who: tuple[str, Principal] | None = None  # mechanism and principal
        self._lasts = False  # whether the login expires
        self._expiry: Timer | None = None
        self.pending = False
        """Whether requests must be admitted."""
        self.told: LoginRefused | None = None
        """Last refusal that was logged."""
        self.raw = False
        """Whether the next frame is a bare token."""
        if logins is not None and logins.required:
            self._go(_Step.WANTED)

    def _go(self, step: _Step) -> None:
        self._step = step
        self.pending = step not in {_Step.OPEN, _Step.DONE}
        self.raw = step is _Step.RAW

    @property
    def mechanisms(self) -> list[str]:
        """Mechanisms that a client can select."""
        return [] if self._logins is None else list(self._logins.mechanisms)

    @property
    def first(self) -> bool:
        """Whether no login has succeeded."""
        return self._who is None

    @property
    def mechanism(self) -> str:
        """Name of the last mechanism."""
        return self._name

    def admits(self, api_key: int) -> bool:
        """Return whether a request is valid while `pending`."""
        return api_key in _ADMITTED.get(self._step, ())

    def begin(self, mechanism: str, version: int) -> Code:
        """Select a mechanism. Any code but NONE leaves the state unchanged."""
        again = self._step is _Step.DONE and self._lasts
        if self._logins is None or not (again or self._step in {_Step.OPEN, _Step.WANTED}):
            return Code.ILLEGAL_SASL_STATE
        if mechanism not in self._logins.mechanisms:
            return Code.UNSUPPORTED_SASL_MECHANISM
        self._mechanism, self._name = self._logins.begin(mechanism), mechanism
        self._go(_Step.RAW if version == 0 else _Step.TOKEN)
        return Code.NONE

    @property
    def expects_token(self) -> bool:
        """Whether a token must come next."""
        return self._step in {_Step.TOKEN, _Step.RAW}

    async def take(self, token: bytes) -> Answer:
        """Check a token. Raises LoginRefused after a delay; close the connection then."""
        assert self._logins is not None
        assert self._mechanism is not None
        before = self._step
        self._go(_Step.CHECKING)
        try:
            answer = await self._mechanism.answer(token)
            self._check_same(answer)
        except LoginRefused:
            await self._logins.refused()
            raise
        if answer.refused is not None:
            # The delay slows down guessing.
            await self._logins.refused()
        if answer.admitted is None:
            self._go(before)
        else:
            self._who = self._name, answer.admitted.principal
            self._lasts = answer.admitted.lifetime_ms > 0
            self._mechanism = None
            self._go(_Step.DONE)
        return answer

    def _check_same(self, answer: Answer) -> None:
        if answer.admitted is not None and self._who not in {None, (self._name, answer.admitted.principal)}:
            raise LoginRefused("Cannot change principals during re-authentication", "its principal changed")

    def expire_in(self, lifetime_ms: int, clock: Clock) -> None:
        """Require another login after `lifetime_ms` (0: never)."""
        self.end()
        if lifetime_ms:
            self._expiry = clock.call_at(clock.ticks_ms() + lifetime_ms, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        if self._step is _Step.DONE:
            self._go(_Step.WANTED)

    def end(self) -> None:
        """Cancel the expiry."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
