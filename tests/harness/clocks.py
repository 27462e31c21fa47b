"""A clock that tests move, and that nothing else moves."""

from headrace.testing import MovableClock


class StandingClock(MovableClock):
    """Time passes only on request, so that rates are exact on a busy machine."""

    def __init__(self) -> None:
        """It is now."""
        super().__init__()
        self._began_ms = super().ticks_ms()

    def ticks_ms(self) -> int:
        """See `headrace.broker.runtime.clock.Clock`."""
        return self._began_ms + self.ahead_ms
