"""Bound sockets for listeners."""

import contextlib
import errno
import socket

from headrace.server.config import Address, StartError


class AddressTaken(StartError):
    """Somebody else listens there."""


def bind(address: Address, where: str, stack: contextlib.AsyncExitStack) -> socket.socket:
    """A bound socket, before anything else is started: a busy port is the commonest mistake.

    Args:
        address: what to bind it to.
        where: how another address is asked for, such as `--kafka HOST:PORT`.
        stack: closes it.

    Raises:
        AddressTaken: somebody else has that port.
        StartError: there is no such address, or it may not be bound.
    """
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        stack.callback(bound.close)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address.host, address.port))
        # Two sockets may be bound to one port until one of them listens.
        bound.listen(1024)
        bound.setblocking(False)
    except OSError as error:
        kind = AddressTaken if error.errno == errno.EADDRINUSE else StartError
        raise kind(
            f"cannot listen on {address}: {error.strerror}; choose another address with {where} (port 0: a free one)"
        ) from None
    return bound


def address_of(bound: socket.socket) -> str:
    """`HOST:PORT` of a bound socket."""
    host, port = bound.getsockname()[:2]
    return str(Address(host, port))
