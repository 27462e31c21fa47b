"""Where something listens: a host and a port, as text and as a value; and who is behind an address."""

import ipaddress
import re

import msgspec

EVERYWHERE = "0.0.0.0"
"""A host that a server may listen on and nobody can connect to: it stands for every address of the machine."""
_ZEROS = re.compile(r"(0x)?0+(\.(0x)?0+){0,3}", re.IGNORECASE)
"""0.0.0.0 in every way in which systems read it (inet_aton)."""
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

    @classmethod
    def told(cls, text: str) -> "Address":
        """Read what clients are to connect to; raises ValueError where nobody can."""
        address = cls.parse(text)
        if not address.reachable:
            raise ValueError(
                f"clients cannot connect to {text!r}; name a host and a port by which they reach this server"
            )
        return address

    @property
    def reachable(self) -> bool:
        """Whether somebody can connect to what it names."""
        return not is_everywhere(self.host) and self.port != 0

    @property
    def from_here(self) -> "Address":
        """Where a program on this machine connects to it; an IPv6 socket that listens everywhere takes IPv4, too."""
        return Address("127.0.0.1", self.port) if is_everywhere(self.host) else self

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_everywhere(host: str) -> bool:
    """Whether it stands for every address of the machine, however it is written: `0`, `[0:0:0:0:0:0:0:0]`."""
    if _ZEROS.fullmatch(host):
        return True
    try:
        return ipaddress.ip_address(plain(host)).is_unspecified
    except ValueError:
        return False


_NETWORK_BITS = 64
"""Of an IPv6 address; the others are its machine's choice (RFC 4291, section 2.5.1)."""


def plain(host: str) -> str:
    """An address as people write it: one of IPv4 that came over IPv6 as itself. What is none stays what it is."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped or address)


def holder(host: str) -> str:
    """Who has an address, for what is counted by address: of IPv6 the whole network of 64 bits, as `PREFIX/64`.

    A machine may have every address of that network, and so could go on under another one each time.
    """
    address = plain(host)
    if ":" not in address or address == "::1":
        return address
    try:
        known = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    rest = 128 - _NETWORK_BITS
    prefix = ipaddress.IPv6Address(int(known) >> rest << rest)
    return f"{prefix}/{_NETWORK_BITS}"
