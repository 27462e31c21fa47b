"""Errors of the registry with Confluent's codes, and the bounds of one request.

Source: Confluent's documentation, "Schema Registry API Reference", "Errors".
"""

from collections.abc import Callable
from typing import Final

MOST_STEPS: Final = 500_000
"""Steps of parsing and comparison in one request; a step takes a few microseconds."""
DEEPEST: Final = 100
"""Maximum nesting of a schema in JSON, and of named types in one another while two schemas are compared."""
_STEPS_AT_ONCE: Final = 200


class RegistryError(Exception):
    """A request that fails, with HTTP status, Confluent's code and a message."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class InvalidSchema(RegistryError):
    """The schema cannot be parsed, or exceeds a limit."""

    def __init__(self, message: str) -> None:
        super().__init__(422, 42201, message)


class Steps:
    """A budget of steps, so that a hostile schema costs bounded time."""

    def __init__(self, most: int = MOST_STEPS, rest: Callable[[], None] = lambda: None) -> None:
        """Start with `most` steps. `rest` is called every few hundred steps and lets other threads run."""
        self._most = most
        self._left = most
        self._rest = rest
        self._rest_at = most

    def take(self, count: int = 1) -> None:
        """Count steps. Raises InvalidSchema if too many were taken."""
        self._left -= count
        if self._left < self._rest_at:
            self._rest_at = self._left - _STEPS_AT_ONCE
            self._rest()
            if self._left < 0:
                raise InvalidSchema(
                    f"The schema is too complex: parsing and comparing it takes more than {self._most:,} steps. "
                    "Split it, or use a compatibility level that is not transitive"
                )


def subject_not_found(subject: str) -> RegistryError:
    """Return the error for an unknown subject."""
    return RegistryError(404, 40401, f"Subject '{subject}' not found.")


def version_not_found(version: object) -> RegistryError:
    """Return the error for an unknown version."""
    return RegistryError(404, 40402, f"Version {version} not found.")


def schema_not_found(what: object = "") -> RegistryError:
    """Return the error for an unknown schema, ID or GUID."""
    return RegistryError(404, 40403, f"Schema {what} not found" if what != "" else "Schema not found")


def not_permitted(message: str) -> RegistryError:
    """Return the error for an operation that the mode or the server does not permit."""
    return RegistryError(422, 42205, message)
