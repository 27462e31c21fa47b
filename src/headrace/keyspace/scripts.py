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
    return _made(name, text)


def without_limit(limited: Script) -> Script:
    """The same script, for what must go in although Redis is full: `maxmemory` does not hold for it."""
    return _made(f"{limited.name} without limit", f"#!lua flags=allow-oom\n{limited.text}")


def _made(name: str, text: str) -> Script:
    # Redis names a script by this digest; it protects nothing.
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
