"""Configuration keys as data: how a value of one is read from text, checked and explained. Pure.

Topic configurations and broker settings share these rules, so that `--set`, a file and an API refuse alike.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from enum import IntEnum

import msgspec

Value = bool | int | float | str


class ConfigType(IntEnum):
    """Kafka's type of a configuration value; the numbers are those of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


# Python's own int() also takes underscores and other scripts' digits, which no other reader of the value would.
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_LONGEST_NAME = 100
"""Characters of a name that those which are known are compared with."""
_BOUNDS = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), 2**31 - 1),
    ConfigType.LONG: (-(2**63), 2**63 - 1),
}


class ConfigKey(msgspec.Struct, frozen=True):
    """One key: Kafka's name, type and default, what it takes, and what it does here."""

    name: str
    type: ConfigType
    default: str | None
    """None: not set, and something else decides (the documentation says what)."""
    doc: str
    minimum: int | float | None = None
    maximum: int | float | None = None
    choices: tuple[str, ...] = ()
    may_be_empty: bool = False
    """Lists with choices: whether there may be none of them."""
    refused: Mapping[str, str] = {}
    """Values that Kafka takes and this server does not, with the reason."""
    effective: bool = True
    """False: accepted and shown because clients send it, but nothing here depends on it."""

    @property
    def field(self) -> str:
        """The key as an attribute's name: `num.partitions` is `num_partitions`."""
        return self.name.replace(".", "_")

    def parse(self, text: str) -> Value:
        """Read a value; raises ValueError with what was expected, for a message that already names the key."""
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
            raise ValueError(f"expected {_either(self.choices)}, found {text!r}")

    def _within(self, number: float) -> int | float:
        if self.minimum is not None and number < self.minimum:
            raise ValueError(f"expected at least {self.minimum}, found {number}")
        if self.maximum is not None and number > self.maximum:
            raise ValueError(f"expected at most {self.maximum}, found {number}")
        return number


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
    """A value as Kafka writes it: `true`, not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def suggestion(name: str, known: Iterable[str]) -> str:
    """`did you mean X?` for the nearest known name, or an empty string when none is near."""
    near = difflib.get_close_matches(name[:_LONGEST_NAME], list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""


class InvalidSetting(ValueError):
    """A setting that does not exist, a value it does not take, or two that contradict each other."""


def plain_text(keys: Mapping[str, ConfigKey], name: str, text: str, kind: str) -> str:
    """A setting's text in its plain form.

    Args:
        keys: the settings there are, by name.
        name: the one that is given.
        text: its value as it was given.
        kind: what to call a setting that is not there, such as `broker setting`.

    Raises:
        InvalidSetting: naming key, value and remedy.
    """
    key = keys.get(name)
    if key is None:
        hint = suggestion(name, keys) or "docs/settings.md lists them all"
        raise InvalidSetting(f"unknown {kind} {name}, {hint}")
    try:
        return text_of(key.parse(text))
    except ValueError as error:
        raise InvalidSetting(f"{name}={text}: {error}") from None
