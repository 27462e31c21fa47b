"""Stored values that cannot be read, by kind and name.

The server skips them and reports them until they are fixed or removed.

The storage owns one object. Readers add to it, and the health check and the metrics show it.
"""

from collections.abc import Callable, Mapping

_MOST_KEPT = 1_000
"""Maximum values with a reason. Others are only counted."""
_MOST_SAID = 300
"""Maximum characters of a name or a reason."""
WHOLE = "*"
"""The name for all values of a kind, if none of them can be read."""
Report = Callable[[str, str, str | None], None]
"""Called with kind, name, and reason. None: readable again, or removed."""


def _ignore(kind: str, name: str, reason: str | None) -> None:
    pass


class Unreadable:
    """Unreadable values that this server has found."""

    def __init__(self, report: Report = _ignore) -> None:
        """Start empty. `report` is called once per change."""
        self._report = report
        self._found: dict[str, dict[str, str]] = {}

    def note(self, kind: str, name: str, reason: object) -> None:
        """Add a value. The same reason is reported once."""
        of_kind = self._found.setdefault(kind, {})
        name, text = name[:_MOST_SAID], str(reason)[:_MOST_SAID]
        if of_kind.get(name) == text:
            return
        of_kind[name] = text if len(of_kind) < _MOST_KEPT else ""
        self._report(kind, name, text)

    def clear(self, kind: str, name: str) -> None:
        """Remove a value that is readable or gone."""
        of_kind = self._found.get(kind)
        if of_kind and of_kind.pop(name[:_MOST_SAID], None) is not None:
            self._report(kind, name[:_MOST_SAID], None)

    def keep(self, kind: str, found: Mapping[str, object]) -> None:
        """Replace all unreadable values of a kind."""
        names = {name[:_MOST_SAID] for name in found}
        for name in [each for each in self._found.get(kind, {}) if each not in names]:
            self.clear(kind, name)
        for name, reason in found.items():
            self.note(kind, name, reason)

    def reason(self, kind: str, name: str) -> str | None:
        """Return why a value cannot be read, if so."""
        return self._found.get(kind, {}).get(name[:_MOST_SAID])

    def hides(self, kind: str, name: str) -> bool:
        """Whether a value may exist although it was not read: because it, or its whole kind, is unreadable."""
        return self.reason(kind, name) is not None or self.reason(kind, WHOLE) is not None

    def names(self, kind: str) -> list[str]:
        """Return the sorted names of a kind's unreadable values."""
        return sorted(self._found.get(kind, {}))

    @property
    def counts(self) -> dict[str, int]:
        """Unreadable values per kind."""
        return {kind: len(found) for kind, found in sorted(self._found.items()) if found}

    @property
    def told(self) -> str:
        """The counts in words. Empty: none."""
        counts = ", ".join(f"{count} of {kind}" for kind, count in self.counts.items())
        return f"stored values that cannot be read: {counts}, see the log" if counts else ""
