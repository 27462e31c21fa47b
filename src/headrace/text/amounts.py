"""How much and how many, as options say it; all raise ValueError with what was expected."""

import re

_MOST_BROKERS = 64
_LEAST_MEMORY = 16 << 20
"""Bytes below which a Valkey has no room for more than itself, and a server does not start."""
_UNITS = {"": 1, "b": 1, "k": 1000, "kb": 1024, "m": 1000**2, "mb": 1024**2, "g": 1000**3, "gb": 1024**3}


def memory(text: str) -> int:
    """Bytes, written as Redis writes them: `512mb` is 512 * 1024 * 1024, `512m` is 512 000 000."""
    match = re.fullmatch(r"([0-9]+)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"expected a size like 512mb or 4gb, found {text!r}")
    size = int(match[1]) * _UNITS[match[2]]
    if 0 < size < _LEAST_MEMORY:
        raise ValueError(
            f"expected at least {_LEAST_MEMORY >> 20}mb, or 0 for no limit, found {text!r}: is it the unit?"
        )
    return size


def brokers(text: str) -> int:
    """How many brokers one machine is to have."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:4]) <= _MOST_BROKERS):
        raise ValueError(f"expected a number from 1 to {_MOST_BROKERS}, found {text!r}")
    return int(text)
