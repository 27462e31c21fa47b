"""The server-side scripts, as text with their names and SHA-1 digests: every file of `lua/`.

What several scripts need stands once, in `lua/parts/`. A script or part names what it takes in a line such as
`-- Parts: ids, size`, and their text takes the place of that line: to Redis a script is one text.
"""

import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

import msgspec

_PARTS: Final = re.compile(r"^-- Parts: (.+)$", re.MULTILINE)


class Script(msgspec.Struct, frozen=True):
    """A Lua script for EVALSHA."""

    name: str
    text: str
    sha: str

    @property
    def reads(self) -> bool:
        """Whether it only reads, as its first line says."""
        return self.text.startswith("#!lua flags=no-writes")


@cache
def scripts() -> dict[str, Script]:
    """Every script by name."""
    parts, found = _texts("lua/parts"), {}
    for name, written in _texts("lua").items():
        text = with_parts(written, parts, set())
        # Redis names a script by this digest; it protects nothing.
        found[name] = Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
    return found


def _texts(folder: str) -> dict[str, str]:
    """The Lua files of a folder by name, without what lies in folders below it."""
    entries = sorted((files("headrace.storage.layout") / folder).iterdir(), key=lambda each: each.name)
    return {each.name.removesuffix(".lua"): each.read_text("utf-8") for each in entries if each.name.endswith(".lua")}


def with_parts(text: str, parts: Mapping[str, str], placed: set[str]) -> str:
    """The text with its parts, and theirs, each of them once and below what it takes itself.

    Args:
        text: Lua with `-- Parts:` lines.
        parts: every part by name.
        placed: names of those that stand above; the ones that are placed are added.

    Raises:
        KeyError: there is no such part.
    """

    def place(line: re.Match[str]) -> str:
        texts = []
        for name in line[1].split(", "):
            if name not in placed:
                placed.add(name)
                texts.append(with_parts(parts[name], parts, placed))
        return "\n".join(texts)

    return _PARTS.sub(place, text)


def script(name: str) -> Script:
    """The script in `lua/<name>.lua`. Raises KeyError when there is none."""
    return scripts()[name]
