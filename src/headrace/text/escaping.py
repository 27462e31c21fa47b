r"""Text from elsewhere, made fit for a terminal: it can neither move the cursor nor turn other text around. Pure.

Topics of other brokers, groups, client ids, keys, values and headers are whatever somebody sent. What does not print
(control characters, marks that change the direction of writing, characters of no width, halves of surrogate pairs)
is written as an escape, such as \x1b.
"""

import json
import re

_NAME = 200
"""Characters of a name that a sentence shows at most: a group may have a name of 32 KB."""


def shown(data: str | bytes | None, most: int | None = None) -> str:
    """One line of text; `-` for None. Bytes that are no UTF-8 are escaped too.

    Args:
        data: what is to be shown.
        most: characters after which it is cut, saying how much there is; None: all of it.
    """
    if data is None:
        return "-"
    size = len(data)
    # A character has at most four bytes: what lies beyond is never shown, so it is never decoded either.
    part = data if most is None else data[: most * 4] if isinstance(data, bytes) else data[: most + 1]
    text = part.decode("utf-8", "backslashreplace") if isinstance(part, bytes) else part
    if most is not None and (len(text) > most or len(part) < size):
        kind = "bytes" if isinstance(data, bytes) else "characters"
        return f"{_escaped(text[:most])}… ({size:,} {kind})"
    return _escaped(text)


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def quoted(name: object) -> str:
    """A name as it stands in a sentence: between quotes, escaped, and cut when it is very long."""
    return f"'{shown(str(name), _NAME)}'"


# Within a JSON document only strings can hold these; JSON escapes what is below U+0080 itself, except DEL.
_BEYOND_ASCII = re.compile("[^\x00-\x7e]")


def json_text(document: object, indent: int | None = None) -> str:
    """A JSON document of the same value, in which whatever does not print is escaped: letters stay readable."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return text if text.isascii() and "\x7f" not in text else _BEYOND_ASCII.sub(_json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    letter = found[0]
    return letter if letter.isprintable() else json.dumps(letter)[1:-1] if letter != "\x7f" else "\\u007f"
