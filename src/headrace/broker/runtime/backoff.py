"""Trying again, less and less often: what does not work is mostly the same for many partitions at once."""

from headrace.broker.runtime.clock import Clock, pause


class Backoff:
    """Pauses, each twice as long as the one before, up to a bound."""

    def __init__(self, clock: Clock, first_ms: int, most_ms: int) -> None:
        """The first pause and the longest one, by the clock's ticks."""
        self._clock = clock
        self._next_ms = first_ms
        self._most_ms = most_ms

    async def pause(self) -> None:
        """Wait before the next try."""
        duration_ms, self._next_ms = self._next_ms, min(2 * self._next_ms, self._most_ms)
        await pause(self._clock, duration_ms)
