"""Kafka's own files of client settings, as its tools take them by `--command-config`: so a login is in one place."""

import re
from pathlib import Path
from typing import Final

from headrace.client.errors import OptionError

OPTION: Final = "properties.file"
"""Behind `kafka.`: names such a file."""
_PAIR: Final = re.compile(r"(?P<name>(?:\\.|[^\\=:\s])+)\s*[=:]?\s*(?P<value>.*)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read(path: str) -> dict[str, str]:
    """The settings of a file, written as java.util.Properties reads them.

    Raises:
        OptionError: it cannot be read. Nothing of what is in it is told.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError(f"'kafka.{OPTION}' {Path(path).absolute()} cannot be read: {reason}") from None
    found = {}
    for line in _lines(text):
        pair = _PAIR.fullmatch(line)
        if pair is not None:
            found[_plain(pair["name"])] = _plain(pair["value"])
    return found


def write(settings: dict[str, str]) -> str:
    """The text of a file with these settings."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())


def _lines(text: str) -> list[str]:
    """The lines that say something; one that ends with an odd number of backslashes goes on in the next."""
    lines: list[str] = []
    going_on = False
    for raw in text.splitlines():
        line = raw.lstrip()
        if not going_on and (not line or line[0] in "#!"):
            continue
        open_ = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        part = line[:-1] if open_ else line
        if going_on:
            lines[-1] += part
        else:
            lines.append(part)
        going_on = open_
    return lines


def _plain(text: str) -> str:
    def letter(found: re.Match[str]) -> str:
        one = found[1]
        return chr(int(one[1:], 16)) if len(one) == 5 else _LETTERS.get(one, one)

    return _ESCAPED.sub(letter, text)


def _escaped(value: str) -> str:
    value = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{value}" if value[:1].isspace() else value
