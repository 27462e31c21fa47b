"""JSON of untrusted schemas: parsed within bounds, and written in a canonical form."""

from math import isinf
from typing import Any, Final

import msgspec

from headrace.schemas.errors import DEEPEST, InvalidSchema, Steps

MOST_PUNCTUATION: Final = 100_000
"""Maximum commas and opening brackets of a schema, which bound its values. No other thread runs while compiled code
reads or checks them all."""


def _float(text: str) -> float:
    """Return a number with a fraction. In Python code, other threads run in between: many digits take msgspec 8 µs."""
    found = float(text)
    if isinf(found):
        raise ValueError(f"the number {text[:40]} is out of range")
    return found


_decode = msgspec.json.Decoder(float_hook=_float).decode
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode


def parse(text: str, steps: Steps) -> Any:
    """Return the value of a JSON text.

    Raises:
        InvalidSchema: The text is not JSON, is nested too deeply, or takes too many steps.
    """
    if sum(map(text.count, ",[{")) > MOST_PUNCTUATION:
        raise InvalidSchema(f"The schema is too complex: it has more than {MOST_PUNCTUATION:,} commas and brackets")
    try:
        found = _decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise InvalidSchema(f"The schema is not valid JSON: {error}") from None
    check_size(found, steps)
    return found


def check_size(found: Any, steps: Steps) -> None:
    """Raise InvalidSchema for a value that is nested too deeply, or takes too many steps."""
    left = [(found, 0)]
    while left:
        one, depth = left.pop()
        steps.take()
        if not isinstance(one, dict | list):
            continue
        if depth >= DEEPEST:
            raise InvalidSchema(f"The schema is nested more than {DEEPEST} levels deep")
        left += [(each, depth + 1) for each in (one.values() if isinstance(one, dict) else one)]


def compact(found: Any) -> str:
    """Return a value as JSON without spaces, with its keys in their order."""
    return _encode(found).decode()


def sorted_text(found: Any) -> str:
    """Return a value as JSON without spaces, with sorted keys."""
    return _encode_sorted(found).decode()


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal as JSON; in Python, true is 1."""
    return one == other and _encode_sorted(one) == _encode_sorted(other)
