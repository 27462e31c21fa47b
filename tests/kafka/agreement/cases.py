"""Cases of requests that Headrace and Apache Kafka answer alike, and where they do not, the decision that says why."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from headrace.kafka.errors import Code

HEADRACE, KAFKA = "headrace", "kafka"


class World(Protocol):
    """One group on one server."""

    words: dict[str, object]
    """Fill the fields of expected messages."""


W = TypeVar("W", bound=World)


@dataclass(frozen=True)
class Answer:
    """What matters of a response."""

    error: str
    """Name of the error code of what was asked for: the response, its group or its partition."""
    message: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    """Other fields, under short names."""


@dataclass(frozen=True)
class Departure:
    """Another answer of Headrace's, on purpose."""

    decision: str
    """Number of the decision."""
    error: str = "NONE"
    message: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Case(Generic[W]):
    """One row: a request in a state of a group, and the answer to it."""

    name: str
    given: tuple[Callable[[W], Answer], ...]
    """Requests that lead to the state. Each must succeed."""
    sent: Callable[[W], Answer]
    error: str = "NONE"
    message: str | None = None
    """With fields of `World.words`. None: not compared."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Those of the answer that are compared."""
    departs: Departure | None = None

    def check(self, world: W, server: str) -> None:
        """Send the requests. Raises AssertionError if the answer is another one."""
        for step in self.given:
            answer = step(world)
            assert answer.error == "NONE", answer
        found = self.sent(world)
        expected = self.departs if self.departs is not None and server == HEADRACE else self
        assert (found.error, found.message) == (
            expected.error,
            found.message if expected.message is None else expected.message.format_map(world.words),
        ), found
        facts = {name: found.facts.get(name, "missing") for name in expected.facts}
        assert facts == dict(expected.facts), found


def name_of(code: int) -> str:
    """The name of an error code."""
    return Code(code).name


def ids(cases: list[Any]) -> list[str]:
    """What pytest calls the cases."""
    return [case.name for case in cases]
