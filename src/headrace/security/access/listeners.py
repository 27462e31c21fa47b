"""Configuration of the Kafka listeners. Pure.

Source: Apache Kafka documentation, "Security", "Listener Configuration" (KIP-103).
"""

import ipaddress
import re
from collections.abc import Iterable
from enum import Enum

import msgspec

from headrace.text.addresses import EVERYWHERE, Address

DEFAULT = "PLAINTEXT"
"""Name of the listener if none is configured."""
_LISTENER = re.compile(r"(?P<name>[A-Za-z0-9_-]+)://(?P<host>\[[0-9A-Fa-f:.%]*\]|[^\s:/\[\]]*):(?P<port>[0-9]{1,5})")
_MAPPED = re.compile(r"(?P<name>[A-Za-z0-9_-]+):(?P<protocol>[A-Za-z_]+)")


class Protocol(Enum):
    """Kafka's security protocols."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def encrypted(self) -> bool:
        """Whether it uses TLS."""
        return self in {Protocol.SSL, Protocol.SASL_SSL}

    @property
    def login(self) -> bool:
        """Whether it requires a login."""
        return self in {Protocol.SASL_PLAINTEXT, Protocol.SASL_SSL}


class Listener(msgspec.Struct, frozen=True):
    """Name, protocol and address of a listener."""

    name: str
    protocol: Protocol
    address: Address
    """Listen address; port 0: a free one."""
    advertised: Address | None = None
    """The advertised address; None: the listen address."""


def parse(listeners: str, protocol_map: str, advertised: str) -> tuple[Listener, ...]:
    """Parse `listeners`, `listener.security.protocol.map` and `advertised.listeners`. Raises ValueError.

    Listeners that are not in the last one advertise their listen address.
    """
    protocols = _protocols(protocol_map)
    told = dict(_addresses("advertised.listeners", advertised))
    found = []
    taken: dict[Address, str] = {}
    for name, address in _addresses("listeners", listeners):
        protocol = protocols.get(name)
        if protocol is None:
            raise ValueError(
                f"listeners={listeners}: what {name} speaks is not known; "
                f"say it with listener.security.protocol.map={name}:SASL_SSL, or use one of {', '.join(protocols)}"
            )
        other = taken.setdefault(address, name)
        if other != name and address.port:
            raise ValueError(f"listeners={listeners}: {other} and {name} are both at {address}; give each its own port")
        found.append(Listener(name, protocol, address, told.pop(name, None)))
    if not found:
        raise ValueError(f"listeners={listeners}: expected NAME://HOST:PORT, found nothing")
    for name, address in told.items():
        raise ValueError(f"advertised.listeners={name}://{address}: listeners has no {name}; it has {_names(found)}")
    for each in found:
        if each.advertised is not None and not each.advertised.reachable:
            raise ValueError(
                f"advertised.listeners={each.name}://{each.advertised}: clients cannot connect to that; "
                "name a host and a port by which they reach this server"
            )
    return tuple(found)


def _names(found: Iterable[Listener]) -> str:
    return ", ".join(each.name for each in found)


def _addresses(setting: str, text: str) -> Iterable[tuple[str, Address]]:
    names: set[str] = set()
    for item in filter(None, (each.strip() for each in text.split(","))):
        match = _LISTENER.fullmatch(item)
        if match is None or int(match["port"]) > 65535:
            raise ValueError(
                f"{setting}={text}: expected NAME://HOST:PORT, such as SASL_SSL://0.0.0.0:9093, found {item!r}"
            )
        name = match["name"].upper()
        if name in names:
            raise ValueError(f"{setting}={text}: {name} is there twice; give each listener a name of its own")
        names.add(name)
        yield name, Address(match["host"].strip("[]") or EVERYWHERE, int(match["port"]))


def _protocols(text: str) -> dict[str, Protocol]:
    protocols = {}
    for item in filter(None, (each.strip() for each in text.split(","))):
        match = _MAPPED.fullmatch(item)
        if match is None or match["protocol"].upper() not in Protocol.__members__:
            raise ValueError(
                f"listener.security.protocol.map={text}: expected NAME:PROTOCOL with "
                f"{', '.join(Protocol.__members__)}, found {item!r}"
            )
        protocols[match["name"].upper()] = Protocol[match["protocol"].upper()]
    return protocols


def is_loopback(host: str) -> bool:
    """Return whether a listen address (not a name) is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


class Exposed(msgspec.Struct, frozen=True, kw_only=True):
    """Exposure of a listener."""

    where: str
    """Its option, such as `--http 0.0.0.0`."""
    host: str
    """Listen address."""
    encrypted: bool
    login: bool
    """Whether every client must authenticate, by login or certificate."""
    why: str
    """Why clients are accepted without authentication."""
    remedy: str
    """Settings that add encryption and authentication."""


def refusal(listeners: Iterable[Exposed], *, insecure: bool) -> str | None:
    """Return why a listener must not be opened, with the remedy, or None.

    `insecure` (`headrace.insecure`) permits unauthenticated or unencrypted access.
    """
    if insecure:
        return None
    for each in listeners:
        if is_loopback(each.host) or (each.encrypted and each.login):
            continue
        why = each.why if not each.login else "what it sends and takes is not encrypted"
        return (
            f"{each.where} is open to other machines, and {why}: listen on 127.0.0.1, or {each.remedy}, "
            "or say that this is meant with --set headrace.insecure=true"
        )
    return None
