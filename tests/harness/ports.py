"""Ports and addresses for programs that need them before they start."""

import contextlib
import random
import socket
from pathlib import Path

_LEAST, _ENOUGH = 20_000, 5_000
_GIVEN = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
"""Start of the kernel's range of ephemeral ports."""
_chance = random.Random()  # pytest-randomly resets the shared one


def loopback_network() -> str:
    """The first three numbers of addresses of this machine that no other run of the tests has, for all we know."""
    return f"127.{_chance.randrange(1, 255)}.{_chance.randrange(1, 255)}"


def free_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1 outside of the kernel's ephemeral range.

    Only another call of this function can take one before it is used.
    """
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            port, one = _chance.randrange(_LEAST, max(_GIVEN, _LEAST + _ENOUGH)), socket.socket()
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", port))
                stack.callback(one.close)
                found.append(port)
                continue
            one.close()
        return found
