r"""Escapes untrusted text for terminals, so that it can neither move the cursor nor reverse other text. Pure.

Topics, groups, client ids, keys, values and headers may contain anything. Characters that do not print (control
characters, changes of direction, zero width, lone surrogates) become escapes, such as \x1b.
"""

import json
import re

_NAME = 200
"""Maximum characters of a name in a sentence. A group's name may have 32 KB."""


def shown(data: str | bytes | None, most: int | None = None) -> str:
    """Return one line of text; `-` for None. Invalid UTF-8 is escaped.

    Text of more than `most` characters is cut, and its size added.
    """
    if data is None:
        return "-"
    size = len(data)
    # A character has at most four bytes. Do not decode what is never shown.
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
    """Return a name for a sentence: quoted, escaped, and cut if very long."""
    return f"'{shown(str(name), _NAME)}'"


# Only strings in a JSON document can contain these. JSON itself escapes those below U+0080, except DEL.
_BEYOND_ASCII = re.compile("[^\x00-\x7e]")


def json_text(document: object, indent: int | None = None) -> str:
    """Return a JSON document with all characters that do not print escaped. Letters stay readable."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return text if text.isascii() and "\x7f" not in text else _BEYOND_ASCII.sub(_json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    letter = found[0]
    return letter if letter.isprintable() else json.dumps(letter)[1:-1] if letter != "\x7f" else "\\u007f"
