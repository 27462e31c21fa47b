"""Hosts on this machine that can be partitioned: network namespaces, each with an address on one bridge. Needs root.

    with Network() as network:
        one, two = network.host(), network.host()
        with one.entered():
            ...                      # what this thread starts here runs on that host
        network.cut([one], [two])
        network.heal()

The bridge is in a separate namespace, as are the thread that makes it and its threads and processes. From there no
route leads to the machine's own network. That thread can reach every host.
"""

import contextlib
import ctypes
import os
import random
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_NOBODY = "02:00:00:00:00:01"
_CLONE_NEWNET = 0x40000000
_HERE = Path("/proc/thread-self/ns/net")
_NEEDED = "These tests make network namespaces: they need root with CAP_NET_ADMIN and CAP_SYS_ADMIN, and iproute2"
_libc = ctypes.CDLL(None, use_errno=True)
_chance = random.Random()
"""A separate generator: pytest-randomly resets the shared one, which would find the remains of a killed run."""


class NotPermitted(AssertionError):
    """This machine does not let us make network namespaces."""


class Host:
    """A namespace with one address."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Run the connections, listeners and processes of this thread on this host."""
        with _HERE.open() as before, Path(f"/run/netns/{self.name}").open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Network:
    """A bridge and its hosts; a context manager makes and removes them."""

    def __init__(self) -> None:
        """Nothing is there yet."""
        self._id = f"hr{_chance.randrange(1 << 20):05x}"
        self._subnet = f"10.{_chance.randrange(64, 192)}.{_chance.randrange(256)}"
        self.hosts: list[Host] = []
        self._cuts: list[tuple[Host, str]] = []
        self._outside: int | None = None
        """The namespace that the thread came from, as an open file."""

    def __enter__(self) -> Self:
        self._outside = os.open(_HERE, os.O_RDONLY)
        if _libc.unshare(_CLONE_NEWNET):
            os.close(self._outside)
            raise NotPermitted(f"no network namespace: {os.strerror(ctypes.get_errno())}. {_NEEDED}")
        try:
            _ip("link", "set", "lo", "up")
            _ip("link", "add", self._id, "type", "bridge")
            _ip("address", "add", f"{self._subnet}.254/24", "dev", self._id)
            _ip("link", "set", self._id, "up")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        # Each link takes its other end with it.
        links = [f"{self._id}v{place + 1}" for place in range(len(self.hosts))]
        for command in (
            *(["netns", "delete", host.name] for host in self.hosts),
            *(["link", "delete", link] for link in (*links, self._id)),
        ):
            subprocess.run(["ip", *command], check=False, capture_output=True)
        if self._outside is not None:
            _enter(self._outside)
            os.close(self._outside)
            self._outside = None

    def host(self) -> Host:
        """One more host. Raises NotPermitted."""
        place = len(self.hosts) + 1
        host = Host(f"{self._id}-{place}", f"{self._subnet}.{place}")
        _ip("netns", "add", host.name)
        self.hosts.append(host)
        outside = f"{self._id}v{place}"
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", host.name)
        _ip("link", "set", outside, "master", self._id, "up")
        _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", host.name, "link", "set", device, "up")
        return host

    def cut(self, some: Sequence[Host], others: Sequence[Host]) -> None:
        """Drop, without a word, what goes between two sides, both ways: connections stay, and hear nothing."""
        for one in some:
            for two in others:
                self._mislead(one, two)
                self._mislead(two, one)

    def _mislead(self, host: Host, other: Host) -> None:
        """Make one host send packets for the other to an unknown hardware address."""
        _ip(
            "-n", host.name, "neighbour", "replace", other.address, "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent"
        )
        self._cuts.append((host, other.address))

    def heal(self) -> None:
        """Remove all partitions."""
        for host, address in self._cuts:
            _ip("-n", host.name, "neighbour", "delete", address, "dev", "eth0")
        self._cuts.clear()


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise NotPermitted(f"`ip {' '.join(arguments)}` says: {done.stderr.strip()}. {_NEEDED}")
