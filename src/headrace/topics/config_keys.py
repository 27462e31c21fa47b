"""Configuration keys as data: parsing, checks and descriptions. Pure.

Topic configurations and broker settings share them, so that `--set`, a file and an API reject the same values.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from typing import NamedTuple

import msgspec

Value = bool | int | float | str


class ConfigType(IntEnum):
    """Kafka's type of a configuration value, with the numbers of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


# int() also accepts underscores and digits of other scripts.
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_LONGEST_NAME = 100
"""Maximum characters of a name that are compared with known ones."""
_BOUNDS = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), 2**31 - 1),
    ConfigType.LONG: (-(2**63), 2**63 - 1),
}


class ConfigKey(msgspec.Struct, frozen=True):
    """A key: Kafka's name, type and default, valid values, and its effect here."""

    name: str
    type: ConfigType
    default: str | None
    """None: not set. The documentation describes the effect."""
    doc: str
    minimum: int | float | None = None
    maximum: int | float | None = None
    choices: tuple[str, ...] = ()
    may_be_empty: bool = False
    """For lists with choices: whether an empty list is valid."""
    refused: Mapping[str, str] = {}
    """Values that Kafka accepts and this server rejects, with the reason."""
    effective: bool = True
    """False: accepted and shown because clients send it, without effect."""

    @property
    def field(self) -> str:
        """The key as a Python name: `num_partitions` for `num.partitions`."""
        return self.name.replace(".", "_")

    def parse(self, text: str) -> Value:
        """Parse a value. Raises ValueError with the expected form, without the key's name."""
        text = text.strip()
        if self.may_be_empty and not text:
            return text
        for item in text.split(",") if self.type is ConfigType.LIST else (text,):
            self._check_choice(item.strip())
        match self.type:
            case ConfigType.BOOLEAN:
                return _boolean(text)
            case ConfigType.STRING | ConfigType.LIST:
                return text
            case ConfigType.DOUBLE:
                return self._within(_number(text))
            case _:
                return self._within(_whole_number(text, self.type))

    def _check_choice(self, text: str) -> None:
        if text in self.refused:
            raise ValueError(self.refused[text])
        if self.choices and text not in self.choices:
            if self.type is ConfigType.LIST:
                # Kafka's text.
                raise ValueError(f"String must be one of: {', '.join(self.choices)}")
            raise ValueError(f"expected {_either(self.choices)}, found {text!r}")

    def _within(self, number: float) -> int | float:
        if self.minimum is not None and number < self.minimum:
            raise ValueError(f"expected at least {self.minimum}, found {number}")
        if self.maximum is not None and number > self.maximum:
            raise ValueError(f"expected at most {self.maximum}, found {number}")
        return number


class Source(Enum):
    """Source of a configuration value."""

    TOPIC = "topic"
    GROUP = "group"
    BROKER = "broker"
    DEFAULT = "default"


class Synonym(NamedTuple):
    """One place of a value."""

    name: str
    """The key's name there: `group.consumer.session.timeout.ms` is the broker's for consumer.session.timeout.ms."""
    value: str
    source: Source


class ConfigEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a described configuration."""

    key: ConfigKey
    synonyms: tuple[Synonym, ...]
    """All values that apply, the effective one first."""

    @property
    def value(self) -> str:
        """The effective value."""
        return self.synonyms[0].value

    @property
    def source(self) -> Source:
        """Source of `value`."""
        return self.synonyms[0].source


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in {"true", "false"}:
        raise ValueError(f"expected true or false, found {text!r}")
    return lowered == "true"


def _number(text: str) -> float:
    if _DECIMAL.fullmatch(text) is None:
        raise ValueError(f"expected a number, found {text!r}")
    return float(text)


def _whole_number(text: str, kind: ConfigType) -> int:
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"expected a whole number, found {text!r}")
    number = int(text)
    low, high = _BOUNDS[kind]
    if not low <= number <= high:
        raise ValueError(f"expected a number from {low} to {high}, found {number}")
    return number


def _either(choices: tuple[str, ...]) -> str:
    return " or ".join(choices) if len(choices) < 3 else "one of " + ", ".join(choices)


def text_of(value: Value) -> str:
    """Return a value in Kafka's form: `true`, not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `did you mean X?` for the nearest known name, or an empty string."""
    near = difflib.get_close_matches(name[:_LONGEST_NAME], list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""


class InvalidSetting(ValueError):
    """An unknown setting, an invalid value, or two that contradict each other."""


def plain_text(keys: Mapping[str, ConfigKey], name: str, text: str, kind: str) -> str:
    """Return the normalized text of a setting.

    Args:
        keys: known settings.
        name: the setting.
        text: the given value.
        kind: term for unknown settings, such as `broker setting`.

    Raises:
        InvalidSetting: names key, value and remedy.
    """
    key = keys.get(name)
    if key is None:
        hint = suggestion(name, keys) or "docs/settings.md lists them all"
        raise InvalidSetting(f"unknown {kind} {name}, {hint}")
    try:
        return text_of(key.parse(text))
    except ValueError as error:
        raise InvalidSetting(f"{name}={text}: {error}") from None
