"""Hosts and ports as text and as values, and the network that holds an address."""

import ipaddress
import re

import msgspec

EVERYWHERE = "0.0.0.0"
"""Host for listening on every address of the machine. Clients cannot connect to it."""
_ZEROS = re.compile(r"(0x)?0+(\.(0x)?0+){0,3}", re.IGNORECASE)
"""0.0.0.0 in every notation of inet_aton."""
_HOST_PORT = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%]+)\]|(?P<host>[^\s:\[\]]+)):(?P<port>[0-9]{1,5})")


class Address(msgspec.Struct, frozen=True):
    """A host and a TCP port. Port 0: the system chooses a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse `HOST:PORT` or `[IPV6]:PORT`. Raises ValueError with the expected form."""
        match = _HOST_PORT.fullmatch(text.strip())
        if match is None or int(match["port"]) > 65535:
            raise ValueError(f"expected HOST:PORT, such as 127.0.0.1:9092, found {text!r}")
        return cls(match["six"] or match["host"], int(match["port"]))

    @classmethod
    def told(cls, text: str) -> "Address":
        """Parse an advertised address. Raises ValueError if no client can connect to it."""
        address = cls.parse(text)
        if not address.reachable:
            raise ValueError(
                f"clients cannot connect to {text!r}; name a host and a port by which they reach this server"
            )
        return address

    @property
    def reachable(self) -> bool:
        """Whether a client can connect to it."""
        return not is_everywhere(self.host) and self.port != 0

    @property
    def from_here(self) -> "Address":
        """Address for programs on this machine. An IPv6 socket that listens everywhere accepts IPv4, too."""
        return Address("127.0.0.1", self.port) if is_everywhere(self.host) else self

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_everywhere(host: str) -> bool:
    """Whether it means every address of the machine, in any notation: `0`, `[0:0:0:0:0:0:0:0]`."""
    if _ZEROS.fullmatch(host):
        return True
    try:
        return ipaddress.ip_address(plain(host)).is_unspecified
    except ValueError:
        return False


_NETWORK_BITS = 64
"""Network part of an IPv6 address. A machine chooses the rest (RFC 4291, section 2.5.1)."""


def plain(host: str) -> str:
    """Return an IPv4 address that came over IPv6 in IPv4's form. All else is unchanged."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped or address)


def holder(host: str) -> str:
    """Return the key by which addresses are counted: IPv6 networks of 64 bits as `PREFIX/64`.

    A machine can use every address of its network.
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
