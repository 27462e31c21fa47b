"""Ports and addresses for programs that have to be told theirs before they start."""

import contextlib
import random
import socket
from pathlib import Path

_LEAST, _ENOUGH = 20_000, 5_000
_GIVEN = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
"""The first port that the kernel gives to whoever names none."""
_chance = random.Random()  # not the one that pytest-randomly has begin anew


def loopback_network() -> str:
    """The first three numbers of addresses of this machine that no other run of the tests has, for all we know."""
    return f"127.{_chance.randrange(1, 255)}.{_chance.randrange(1, 255)}"


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody has, and that nobody gets who asks for any port or connects to somewhere.

    Those that the kernel gives away begin higher, so nothing but another call of this may take one before it is used.
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
