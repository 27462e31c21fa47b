"""Where something listens: a host and a port, as text and as a value."""

import re

import msgspec

_HOST_PORT = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%]+)\]|(?P<host>[^\s:\[\]]+)):(?P<port>[0-9]{1,5})")


class Address(msgspec.Struct, frozen=True):
    """A host and a TCP port. Port 0 asks the system for a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `HOST:PORT` or `[IPV6]:PORT`; raises ValueError with what was expected."""
        match = _HOST_PORT.fullmatch(text.strip())
        if match is None or int(match["port"]) > 65535:
            raise ValueError(f"expected HOST:PORT, such as 127.0.0.1:9092, found {text!r}")
        return cls(match["six"] or match["host"], int(match["port"]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
