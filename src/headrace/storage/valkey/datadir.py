"""The data directory of the embedded Valkey.

- `lock`: flock of the server, with its pid
- `valkey.lock`: flock of the Valkey, inherited, also held after the end of its server
- `sock`: the Valkey's socket, unless its path is too long
- `socket`: otherwise the path of a private folder for it
- `valkey.log`: Valkey's log
- `appendonlydir`: the records
- `journal`: acknowledged batches that the append-only file may not have yet
- `storage.password`: Valkey's password, if the server has ACLs

The locks prevent a second writer. Pids are for messages and signals only.
"""

import contextlib
import fcntl
import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Self

import structlog

from headrace.storage.errors import StoreError

_log = structlog.get_logger("headrace.storage.valkey")

PASSWORD = "storage.password"
RECORDS = "appendonlydir"
SOCKET_PATH_BYTES = 107
"""Size of sockaddr_un without its final zero."""

MANIFEST = "appendonly.aof.manifest"
"""In the folder of the records: the names of their files."""
_NOTHING_BYTES = 1 << 10
"""Maximum bytes of all files of a Valkey without records."""
_LOG_BYTES = 10 << 20
"""A longer log is set aside at the next start."""


class DataDirectoryBusy(StoreError):
    """Another server uses the data directory."""

    def __init__(self, path: Path, owner: str) -> None:
        """Create the message; `owner` is the pid, or empty if unknown."""
        who = f"the server with pid {owner}" if owner else "another server"
        super().__init__(
            f"data directory {path} is in use by {who}; stop that one, or choose another directory with --data"
        )


class DataDirectory:
    """A data directory that this process has locked."""

    def __init__(self, path: Path, lock: int) -> None:
        """Use `open`."""
        self.path = path
        self.log = path / "valkey.log"
        self._lock = lock
        self._record = path / "socket"
        self._password = path / PASSWORD

    @classmethod
    def open(cls, path: Path) -> Self:
        """Create a missing directory, and lock it. Raises DataDirectoryBusy, StoreError."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = path.resolve(strict=True)
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            reason = "there is something else of that name" if isinstance(error, FileExistsError) else error.strerror
            at = f" ({error.filename})" if str(error.filename or path) != str(path) else ""
            raise StoreError(
                f"cannot keep data in {path}: {reason}{at}; choose another directory with --data"
            ) from None
        try:
            locked = _try_lock(lock)
        except OSError as error:
            os.close(lock)
            raise StoreError(
                f"cannot lock {path / 'lock'}: {error.strerror}; choose a directory on a local disk with --data"
            ) from None
        if not locked:
            owner = _named(lock)
            os.close(lock)
            raise DataDirectoryBusy(path, owner)
        # Only for messages; the disk may be full.
        with contextlib.suppress(OSError):
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        opened = cls(path, lock)
        opened._close_to_others()
        return opened

    def close(self) -> None:
        """Unlock the directory. The file stays, or two servers could hold a lock each."""
        os.close(self._lock)

    def lock_for_valkey(self) -> int | None:
        """Return a locked descriptor for a Valkey, or None if one still has the lock."""
        try:
            lock = os.open(self.path / "valkey.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreError(f"cannot open {self.path / 'valkey.lock'}: {error.strerror}; move it away") from None
        if _try_lock(lock):
            return lock
        os.close(lock)
        return None

    def socket(self) -> Path:
        """Return the socket's path; create its private folder if needed. Raises StoreError."""
        place = self.path / "sock"
        if _fits(place):
            return place
        recorded = self._recorded_folder()
        return (recorded or self._new_folder()) / "sock"

    def remove_socket(self) -> None:
        """Remove the socket of a Valkey that has ended."""
        (self.path / "sock").unlink(missing_ok=True)
        folder = self._recorded_folder()
        if folder is not None:
            (folder / "sock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._record.unlink(missing_ok=True)

    def password(self) -> str | None:
        """Return Valkey's password, if the last server had ACLs. Raises StoreError."""
        try:
            found = self._password.read_text("ascii").strip()
            if found and not found.isalnum():
                raise ValueError
            return found or None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it has bytes that no server wrote"
            raise StoreError(
                f"cannot read the password of the Valkey in {self._password}: {reason}; stop a Valkey that still "
                "runs on this data, and remove the file"
            ) from None

    def new_password(self) -> str:
        """Create a password, atomically in a private file."""
        made = secrets.token_hex(32)
        draft = self._password.with_suffix(".new")
        draft.unlink(missing_ok=True)
        draft.touch(0o600, exist_ok=False)
        draft.write_text(f"{made}\n", "ascii")
        draft.replace(self._password)
        return made

    def remove_password(self) -> None:
        """Remove the password, which is no longer used."""
        self._password.unlink(missing_ok=True)

    def check_records(self) -> None:
        """Raise StoreError for records that Valkey would not find or could not read."""
        folder = self.path / RECORDS
        try:
            if (folder / MANIFEST).exists() or not folder.is_dir():
                return
            found = sum(each.stat().st_size for each in folder.iterdir() if each.is_file())
        except OSError as error:
            raise StoreError(
                f"cannot read {error.filename or folder}: {error.strerror}; it must belong to the user of the server"
            ) from None
        # A first start that was killed leaves empty files without a manifest.
        if found > _NOTHING_BYTES:
            raise StoreError(
                f"{folder} has records, but {MANIFEST} is missing. Restore it, for example from the "
                f"copy that {folder} came from, or move {folder} away to start without its records"
            )

    def put_log_aside(self) -> None:
        """Start a new log after the old one has become long."""
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > _LOG_BYTES:
                self.log.replace(self.log.with_suffix(".log.old"))

    def _close_to_others(self) -> None:
        """Remove other users' access. The directory itself may have other purposes: only log its mode."""
        closed = []
        for name in (RECORDS, "valkey.log", "valkey.log.old", "journal", PASSWORD):
            found = self.path / name
            with contextlib.suppress(OSError):
                mode = stat.S_IMODE(found.lstat().st_mode)
                if mode & 0o077 and not found.is_symlink():
                    found.chmod(mode & 0o700)
                    closed.append(name)
        if closed:
            _log.warning(
                "permissions of files with records were too open and have been fixed",
                data=str(self.path),
                files=closed,
            )
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if mode & 0o077:
            _log.warning(
                "other users can read the data directory: run chmod 700", data=str(self.path), mode=f"{mode:o}"
            )

    def _recorded_folder(self) -> Path | None:
        try:
            identity, folder = self._record.read_text("utf-8", "surrogateescape").split("\n")[:2]
        except (OSError, ValueError):
            return None
        # The folder of a copied directory belongs to the original.
        if identity != self._identity() or not _is_private(Path(folder)):
            return None
        return Path(folder)

    def _new_folder(self) -> Path:
        for parent in (tempfile.gettempdir(), "/tmp"):
            if not _fits(Path(parent, "headrace-12345678", "sock")):
                continue
            try:
                folder = tempfile.mkdtemp(prefix="headrace-", dir=parent)
            except OSError:
                continue
            draft = self._record.with_suffix(".new")
            draft.write_text(f"{self._identity()}\n{folder}\n", "utf-8", "surrogateescape")
            draft.replace(self._record)
            return Path(folder)
        raise StoreError(
            f"the path of {self.path} is too long for a socket and no private folder could be made in "
            f"{tempfile.gettempdir()}; choose another directory with --data"
        )

    def _identity(self) -> str:
        status = self.path.stat()
        return f"{status.st_dev}:{status.st_ino}"


def has_records(path: Path) -> bool:
    """Return whether a readable data directory has records."""
    try:
        return (path / RECORDS).is_dir()
    except OSError:
        return False


def user_of(path: Path) -> str | None:
    """Return the pid of the server that uses the directory (empty if unknown), or None."""
    with contextlib.suppress(OSError), (path / "lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _named(lock.fileno())
    return None


def _named(lock: int) -> str:
    return os.pread(lock, 32, 0).decode("ascii", "replace").strip()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fits(socket: Path) -> bool:
    return len(os.fsencode(socket)) <= SOCKET_PATH_BYTES


def _is_private(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and status.st_mode & 0o077 == 0
