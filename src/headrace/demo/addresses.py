"""Where the demo's server listens: the usual ports, or free ones where somebody has those already."""

import errno
import socket

from headrace.server.config import Address

KAFKA = "127.0.0.1:9092"
HTTP = "127.0.0.1:8080"


def choose(asked: str | None, usual: str) -> tuple[str, bool]:
    """HOST:PORT for the server, and whether the usual port was in use; what was asked for stays as it is.

    Raises:
        ValueError: what was asked for is no HOST:PORT.
    """
    if asked is not None:
        return str(Address.parse(asked)), False
    address = Address.parse(usual)
    if not _in_use(address):
        return usual, False
    return str(Address(address.host, 0)), True


def _in_use(address: Address) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the server binds: a port is not in use because a connection of its last owner is still closing.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
            probe.listen()
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
