"""The server-side scripts, as text with their names and SHA-1 digests."""

from functools import cache
from hashlib import sha1
from importlib.resources import files

import msgspec


class Script(msgspec.Struct, frozen=True):
    """A Lua script for EVALSHA."""

    name: str
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script in `lua/<name>.lua`. Raises FileNotFoundError when there is none."""
    text = (files("headrace.keyspace") / "lua" / f"{name}.lua").read_text("utf-8")
    # Redis names a script by this digest; it protects nothing.
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
