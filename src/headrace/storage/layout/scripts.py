"""The server-side scripts of `lua/`, with names and SHA-1 digests.

A line such as `-- Parts: ids, size` is replaced by these files of `lua/parts/`.
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
        """Return whether it is a read, by its first line."""
        return self.text.startswith("#!lua flags=no-writes")


@cache
def scripts() -> dict[str, Script]:
    """Return all scripts by name."""
    parts, found = _texts("lua/parts"), {}
    for name, written in _texts("lua").items():
        text = with_parts(written, parts, set())
        # Redis's name of the script, not a protection.
        found[name] = Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
    return found


def _texts(folder: str) -> dict[str, str]:
    entries = sorted((files("headrace.storage.layout") / folder).iterdir(), key=lambda each: each.name)
    return {each.name.removesuffix(".lua"): each.read_text("utf-8") for each in entries if each.name.endswith(".lua")}


def with_parts(text: str, parts: Mapping[str, str], placed: set[str]) -> str:
    """Insert parts with their parts, each once before its first use. Raises KeyError.

    `placed` has the names of inserted ones, and is updated.
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
    """Return the script in `lua/<name>.lua`. Raises KeyError."""
    return scripts()[name]
