"""Stored values that cannot be read, by kind and name: skipped at a start, and reported until they are right or gone.

The storage owns one object of this class. Readers of stored values note here what they have skipped. The health check
and the metrics show it.
"""

from collections.abc import Callable, Mapping

_MOST_KEPT = 1_000
"""Values whose reasons are kept; of more only their number is."""
_MOST_SAID = 300
"""Characters of a name or a reason."""
WHOLE = "*"
"""Stands for all values of a kind, where none of them can be read."""
Report = Callable[[str, str, str | None], None]
"""Called with the kind, the name, and the reason; None: the value can be read again, or is gone."""


def _ignore(kind: str, name: str, reason: str | None) -> None:
    pass


class Unreadable:
    """What has been found and is still so, as far as this server has read."""

    def __init__(self, report: Report = _ignore) -> None:
        """Nothing has been found. `report` is called once for each change."""
        self._report = report
        self._found: dict[str, dict[str, str]] = {}

    def note(self, kind: str, name: str, reason: object) -> None:
        """Add one value; the same reason is reported once."""
        of_kind = self._found.setdefault(kind, {})
        name, text = name[:_MOST_SAID], str(reason)[:_MOST_SAID]
        if of_kind.get(name) == text:
            return
        of_kind[name] = text if len(of_kind) < _MOST_KEPT else ""
        self._report(kind, name, text)

    def clear(self, kind: str, name: str) -> None:
        """One value is right, or gone."""
        of_kind = self._found.get(kind)
        if of_kind and of_kind.pop(name[:_MOST_SAID], None) is not None:
            self._report(kind, name[:_MOST_SAID], None)

    def keep(self, kind: str, found: Mapping[str, object]) -> None:
        """All values of a kind have been read, and these cannot be."""
        names = {name[:_MOST_SAID] for name in found}
        for name in [each for each in self._found.get(kind, {}) if each not in names]:
            self.clear(kind, name)
        for name, reason in found.items():
            self.note(kind, name, reason)

    def reason(self, kind: str, name: str) -> str | None:
        """Why a value cannot be read; None: it can be, as far as is known."""
        return self._found.get(kind, {}).get(name[:_MOST_SAID])

    def hides(self, kind: str, name: str) -> bool:
        """Whether a value may be stored that could not be read: by itself, or because none of its kind can be.

        That it was not read says nothing about whether it is there.
        """
        return self.reason(kind, name) is not None or self.reason(kind, WHOLE) is not None

    def names(self, kind: str) -> list[str]:
        """The names of a kind's unreadable values, sorted."""
        return sorted(self._found.get(kind, {}))

    @property
    def counts(self) -> dict[str, int]:
        """How many there are, by kind."""
        return {kind: len(found) for kind, found in sorted(self._found.items()) if found}

    @property
    def told(self) -> str:
        """The same in words, without names; empty: there are none."""
        counts = ", ".join(f"{count} of {kind}" for kind, count in self.counts.items())
        return f"stored values that cannot be read: {counts}, see the log" if counts else ""
