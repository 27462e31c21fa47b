"""Meters of what clients use, by whom they are for, and no more of them than there is room for.

A client chooses its id, so one that takes ever new ones could have the server forget what others have used. A meter
that counts is never forgotten for another: whoever has made `MOST_OF_ONE` shares one for all that comes beyond, and so
do all who come when there are `MOST`.
"""

from collections import Counter
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from headrace.security.quotas.entities import Held, Key

MOST = 10_000
"""Meters of one virtual cluster."""
MOST_OF_ONE = 1_000
"""Of these, made by one user or, where nobody has logged in, by one address."""
_SWEEP_MS = 1_000
"""Between two looks for those that nobody uses."""

Maker = tuple[str, str]
"""Who a meter is made by: a user's name, and the address of one who has not logged in."""
_EVERYBODY: Maker = ("", "")


class _Forgettable(Protocol):
    def is_idle(self, ticks_ms: int) -> bool:
        """Whether it might as well be forgotten."""


M = TypeVar("M", bound=_Forgettable)
_Place = tuple[Key, tuple[str | None, str | None] | Maker, float | None]


class Meters(Generic[M]):
    """Meters of one sort."""

    def __init__(
        self, most: int = MOST, most_of_one: int = MOST_OF_ONE, forgot: Callable[[], None] = lambda: None
    ) -> None:
        """There is none yet. `forgot` is called when some were forgotten, which nobody may go on using then."""
        self._most = most
        self._most_of_one = most_of_one
        self._forgot = forgot
        self._meters: dict[_Place, tuple[M, Maker]] = {}
        self._made: Counter[Maker] = Counter()
        self._shared: dict[_Place, M] = {}
        self._swept_ms: int | None = None

    def found(self, key: Key, holds: Held, maker: Maker, make: Callable[[], M], ticks_ms: int) -> M:
        """The meter for those who share a limit; a new one of `make` where there is none."""
        place = (key, holds.shared, None)
        known = self._meters.get(place)
        if known is not None:
            return known[0]
        if len(self._meters) >= self._most or self._made[maker] >= self._most_of_one:
            self._sweep(ticks_ms)
        if self._made[maker] >= self._most_of_one:
            return self._of_many(key, holds, maker, make)
        if len(self._meters) >= self._most:
            return self._of_many(key, holds, _EVERYBODY, make)
        meter = make()
        self._meters[place] = meter, maker
        self._made[maker] += 1
        return meter

    def _of_many(self, key: Key, holds: Held, maker: Maker, make: Callable[[], M]) -> M:
        """The one that all share who are beyond, each limit having its own."""
        place = (key, maker, holds.limit)
        meter = self._shared.get(place)
        if meter is None:
            meter = self._shared[place] = make()
        return meter

    def _sweep(self, ticks_ms: int) -> None:
        """Forget those that nobody uses, but not for each stranger anew."""
        if self._swept_ms is not None and ticks_ms - self._swept_ms < _SWEEP_MS:
            return
        self._swept_ms = ticks_ms
        self._meters = {place: known for place, known in self._meters.items() if not known[0].is_idle(ticks_ms)}
        self._shared = {place: meter for place, meter in self._shared.items() if not meter.is_idle(ticks_ms)}
        self._made = Counter(maker for _, maker in self._meters.values())
        self._forgot()
