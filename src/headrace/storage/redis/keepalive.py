"""Notices that the other side of a TCP connection is gone without a word."""

import socket

_IDLE_S, _INTERVAL_S, _TRIES = 10, 3, 3


def notice_silence(connected: socket.socket) -> None:
    """Let the kernel end a connection whose other side is gone without a word, in about 20 s."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _IDLE_S),
        ("TCP_KEEPINTVL", _INTERVAL_S),
        ("TCP_KEEPCNT", _TRIES),
        # Keepalive does not count while something sent is unacknowledged.
        ("TCP_USER_TIMEOUT", 1000 * (_IDLE_S + _TRIES * _INTERVAL_S)),
    ):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
