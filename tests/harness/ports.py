"""Ports and addresses for programs that need them before they start."""

import contextlib
import random
import socket
from pathlib import Path

_LEAST, _ENOUGH = 20_000, 5_000
_GIVEN = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
"""Start of the kernel's range of ephemeral ports."""
_chance = random.Random()  # pytest-randomly resets the shared one


def _take(name: str) -> bool:
    """Take a name for as long as this process runs. Return whether no process had it."""
    # Linux frees an abstract address when its last descriptor is closed.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
        try:
            held.bind(f"\0headrace tests {name}")
        except OSError:
            return False
        held.detach()
        return True


def loopback_network() -> str:
    """Return the first three numbers of addresses of this machine that no other call has returned.

    They are free again when the process has ended.
    """
    while True:
        network = f"127.{_chance.randrange(1, 255)}.{_chance.randrange(1, 255)}"
        if _take(network):
            return network


def free_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1 outside of the kernel's ephemeral range.

    No other call returns them until the process has ended, also while nothing listens there.
    """
    found: list[int] = []
    while len(found) < count:
        port, one = _chance.randrange(_LEAST, max(_GIVEN, _LEAST + _ENOUGH)), socket.socket()
        with one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            if _take(f"port {port}"):
                found.append(port)
    return found
