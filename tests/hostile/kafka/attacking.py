"""Carries attacks out: sends what there is to send, and takes the answers or leaves them."""

import contextlib
import selectors
import socket
import time
from pathlib import Path
from struct import Struct

from headrace.testing.process import Server
from tests.hostile.kafka.corpus import Attack

_SIZE = Struct(">i")
_LOOK_S, _CALM_LOOKS, _CALM_SHARE = 0.04, 3, 0.4
_PATIENCE_S = 4.0
"""How long an attack goes on; one that is not through by then is given up, which is the server's good right."""
_QUIET_S = 0.3
"""How long nothing may come or go before the attacker takes it that nothing will."""


class _Client:
    """One connection of an attacker."""

    def __init__(self, address: str, attack: Attack) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 30)
        self.socket.setblocking(False)
        self.left = memoryview(attack.made())
        self.wanted = attack.answers if attack.reads else 0
        self._missing = 0  # bytes of the present answer
        self._head = b""

    @property
    def events(self) -> int:
        """What it waits for."""
        return (selectors.EVENT_WRITE if self.left else 0) | (selectors.EVENT_READ if self.wanted else 0)

    def send(self) -> None:
        """Send what the kernel takes."""
        self.left = self.left[self.socket.send(self.left) :]

    def receive(self) -> None:
        """Take what has come, and count whole answers."""
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionResetError
        at = 0
        while at < len(data):
            if not self._missing:
                part = data[at : at + _SIZE.size - len(self._head)]
                self._head += part
                at += len(part)
                if len(self._head) == _SIZE.size:
                    self._missing, self._head = _SIZE.unpack(self._head)[0], b""
                continue
            part_size = min(self._missing, len(data) - at)
            self._missing -= part_size
            at += part_size
            if not self._missing:
                self.wanted -= 1


def carry_out(attack: Attack, server: Server) -> None:
    """One attack from its first byte until the server is calm again; its connections are closed after that."""
    with contextlib.ExitStack() as stack:
        clients = [_Client(server.kafka, attack) for _ in range(attack.connections)]
        for client in clients:
            stack.callback(client.socket.close)
        _context(clients)
        _until_calm(server)


def _context(clients: list[_Client]) -> None:
    """Send everything on every connection, and take what is wanted."""
    deadline = time.monotonic() + _PATIENCE_S
    with selectors.DefaultSelector() as ready:
        for client in clients:
            ready.register(client.socket, client.events, client)
        while ready.get_map() and time.monotonic() < deadline:
            found = ready.select(_QUIET_S)
            if not found and not any(client.wanted for client in clients):
                return
            for key, events in found:
                client = key.data
                try:
                    if events & selectors.EVENT_READ:
                        client.receive()
                    if events & selectors.EVENT_WRITE:
                        client.send()
                except BlockingIOError:
                    continue
                except OSError:
                    ready.unregister(client.socket)
                    continue
                if client.events:
                    ready.modify(client.socket, client.events, client)
                else:
                    ready.unregister(client.socket)


def _until_calm(server: Server) -> None:
    """Return when neither the server nor its Valkey has more to do than to answer pings."""
    pids = (server.pid, server.storage_pid)
    deadline = time.monotonic() + _PATIENCE_S
    calm = 0
    before = _busy_s(pids)
    with selectors.DefaultSelector() as nothing:
        while calm < _CALM_LOOKS and time.monotonic() < deadline:
            nothing.select(_LOOK_S)
            now = _busy_s(pids)
            calm = calm + 1 if now - before < _CALM_SHARE * _LOOK_S else 0
            before = now


def _busy_s(pids: tuple[int, ...]) -> float:
    """How long processes' first threads have run, or were ready to run (Linux, sched-stats)."""
    fields = (Path(f"/proc/{pid}/schedstat").read_text().split() for pid in pids)
    return sum(int(ran) + int(waited) for ran, waited, _ in fields) / 1e9
