"""The server-side scripts, as text with their names and SHA-1 digests: every file of `lua/`."""

from functools import cache
from hashlib import sha1
from importlib.resources import files

import msgspec


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
    folder = files("headrace.keyspace") / "lua"
    found = {}
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        if file.name.endswith(".lua"):
            name, text = file.name.removesuffix(".lua"), file.read_text("utf-8")
            # Redis names a script by this digest; it protects nothing.
            found[name] = Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
    return found


def script(name: str) -> Script:
    """The script in `lua/<name>.lua`. Raises KeyError when there is none."""
    return scripts()[name]
