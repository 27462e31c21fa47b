"""Where one connection stands with logging in: SASL, as KIP-43, KIP-152 and KIP-368 carry it.

Handshake first, which names the mechanism; then its tokens, in SaslAuthenticate, or bare in frames of their own after
version 0 of the handshake. Whatever else comes in between ends the connection, as in Kafka.
"""

from enum import Enum, auto

from headrace.broker.logins import Answer, LoginRefused, Logins, Mechanism
from headrace.broker.runtime.clock import Clock, Timer
from headrace.kafka.errors import Code
from headrace.protocol.messages import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from headrace.security.access.principal import Principal

MOST_LOGIN_BYTES = 512 << 10
"""Bytes of a frame before a login, as Kafka's `sasl.server.max.receive.size`: strangers get little memory."""


class _Step(Enum):
    OPEN = auto()
    """Nobody has logged in, and nobody has to."""
    WANTED = auto()
    """Nobody has logged in, and nothing is served before; or a login has expired."""
    TOKEN = auto()
    """A mechanism was agreed on; SaslAuthenticate comes next."""
    RAW = auto()
    """A mechanism was agreed on by version 0; the next frame is a token."""
    CHECKING = auto()
    """A token is being looked at; nothing may come before its answer."""
    DONE = auto()


_ADMITTED = {
    _Step.WANTED: frozenset({ApiVersionsRequest.API_KEY, SaslHandshakeRequest.API_KEY}),
    _Step.TOKEN: frozenset({SaslAuthenticateRequest.API_KEY}),
}


class Login:
    """One connection's state of logging in."""

    __slots__ = ("_expiry", "_lasts", "_logins", "_mechanism", "_name", "_step", "_who", "pending", "raw", "told")

    def __init__(self, logins: Logins | None) -> None:
        """`logins` None: nobody can log in here, and nobody has to."""
        self._logins = logins
        self._step = _Step.OPEN
        self._mechanism: Mechanism | None = None
        self._name = ""  # of the mechanism
        self._who: tuple[str, Principal] | None = None  # by which mechanism somebody logged in, and who
        self._lasts = False  # not for ever
        self._expiry: Timer | None = None
        self.pending = False
        """Whether requests have to be admitted."""
        self.told: LoginRefused | None = None
        """The last refusal that the log tells of."""
        self.raw = False
        """Whether the next frame is a token and no request."""
        if logins is not None and logins.required:
            self._go(_Step.WANTED)

    def _go(self, step: _Step) -> None:
        self._step = step
        self.pending = step not in {_Step.OPEN, _Step.DONE}
        self.raw = step is _Step.RAW

    @property
    def mechanisms(self) -> list[str]:
        """Those that a client may choose from."""
        return [] if self._logins is None else list(self._logins.mechanisms)

    @property
    def first(self) -> bool:
        """Whether nobody has logged in yet."""
        return self._who is None

    @property
    def mechanism(self) -> str:
        """The name of the one that was agreed on last."""
        return self._name

    def admits(self, api_key: int) -> bool:
        """Whether a request of this kind may come now; only asked while `pending`."""
        return api_key in _ADMITTED.get(self._step, ())

    def begin(self, mechanism: str, version: int) -> Code:
        """Agree on a mechanism (SaslHandshake); anything but NONE leaves things as they were."""
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
        """Whether a mechanism was agreed on and its token is to come."""
        return self._step in {_Step.TOKEN, _Step.RAW}

    async def take(self, token: bytes) -> Answer:
        """Have the mechanism look at a token; who logged in with the last one is whose connection it is from now on.

        Raises:
            LoginRefused: the connection is to be closed. Some time has passed then.
        """
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
            # Most clients hang up when they have read it, and may not guess any faster for it.
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
        """Who logs in again must be who it was, by the same mechanism (KIP-368)."""
        if answer.admitted is not None and self._who not in {None, (self._name, answer.admitted.principal)}:
            raise LoginRefused("Cannot change principals during re-authentication", "its principal changed")

    def expire_in(self, lifetime_ms: int, clock: Clock) -> None:
        """Serve nothing more after so long (0: never) before there is another login."""
        self.end()
        if lifetime_ms:
            self._expiry = clock.call_at(clock.ticks_ms() + lifetime_ms, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        if self._step is _Step.DONE:
            self._go(_Step.WANTED)

    def end(self) -> None:
        """The connection is lost, or there is another login: this one does not expire any more."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
