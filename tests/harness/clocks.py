"""A clock that tests move, and that nothing else moves."""

from headrace.testing import MovableClock


class StandingClock(MovableClock):
    """Time passes only when it is told to: rates can be counted exactly, however busy the machine."""

    def __init__(self) -> None:
        """It is now."""
        super().__init__()
        self._began_ms = super().ticks_ms()

    def ticks_ms(self) -> int:
        """See `headrace.broker.runtime.clock.Clock`."""
        return self._began_ms + self.ahead_ms
