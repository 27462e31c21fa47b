"""Who can reach the listeners, and whether that goes with how they check who asks: one rule for all. Pure."""

import ipaddress
from collections.abc import Iterable

import msgspec


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a socket that is bound to this address (an address, not a name)."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


class Exposed(msgspec.Struct, frozen=True, kw_only=True):
    """A listener, as far as it matters who reaches it."""

    where: str
    """By what it was asked for, such as `--http 0.0.0.0`."""
    host: str
    """The address it is bound to."""
    encrypted: bool
    login: bool
    """Whether everybody who is served has proved who they are, by a login or a certificate."""
    why: str
    """How it lets people in who have not."""
    remedy: str
    """What to set, so that it is encrypted and lets nobody in unknown."""


def refusal(listeners: Iterable[Exposed], *, insecure: bool) -> str | None:
    """Why the listeners are not to be opened like this, and what to do about it; None: they may be.

    Args:
        listeners: all of the server's.
        insecure: `headrace.insecure`: that everybody gets in, or can listen, is meant.
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
