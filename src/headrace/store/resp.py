"""Commands in RESP that are the same but for some numbers, as those of an append are."""

import re
from collections.abc import Callable
from typing import Final

NUMBER: Final = b"\1"
"""Place in a template for a number."""
BULK: Final = b"\2"
"""Place for a number as an argument of its own, with its length."""
PAIR: Final = b"\3"
"""Place for two numbers with a hyphen between, as an argument of its own: an entry's id."""

_PLACES: Final = re.compile(rb"[\1-\3]")


def plain_fill(prefix: bytes, template: bytes, /, *numbers: int) -> bytes:
    """The prefix as it is, then the template with the numbers in their places.

    Raises:
        ValueError: there are not as many numbers as places.
    """
    left = iter(numbers)

    def place(found: re.Match[bytes]) -> bytes:
        text = b"%d" % next(left)
        if found[0] == NUMBER:
            return text
        if found[0] == PAIR:
            text = b"%b-%d" % (text, next(left))
        return b"$%d\r\n%b\r\n" % (len(text), text)

    try:
        filled = _PLACES.sub(place, template)
    except StopIteration:
        raise ValueError("fewer numbers than the template has places") from None
    if next(left, None) is not None:
        raise ValueError("more numbers than the template has places")
    return prefix + filled


fill: Callable[..., bytes]
"""`plain_fill`, in C where there is a compiler."""

try:
    import headrace.store._resp as _resp  # noqa: PLR0402  # mypy finds the stub only by this form
except ImportError:  # no compiler when Headrace was installed
    fill = plain_fill
else:
    fill = _resp.fill
