import errno
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest
import structlog

from headrace.storage.errors import StoreError
from headrace.storage.valkey import datadir
from headrace.storage.valkey.datadir import SOCKET_PATH_BYTES, DataDirectory, DataDirectoryBusy


def long_directory(parent: Path) -> Path:
    return parent / ("d" * (200 - len(os.fspath(parent)) - 1))


def test_a_second_server_is_refused_at_once_with_the_process_of_the_first(short_path: Path) -> None:
    first = DataDirectory.open(short_path)
    with pytest.raises(DataDirectoryBusy) as refused:
        DataDirectory.open(short_path)
    assert str(short_path) in str(refused.value)
    assert f"pid {os.getpid()}" in str(refused.value)
    assert "--data" in str(refused.value)
    first.close()
    DataDirectory.open(short_path).close()


def test_two_names_of_one_directory_are_one_directory(short_path: Path) -> None:
    (short_path / "link").symlink_to(short_path / "data")
    first = DataDirectory.open(short_path / "data")
    with pytest.raises(DataDirectoryBusy):
        DataDirectory.open(short_path / "link")
    first.close()


def test_missing_parents_are_made_and_the_directory_is_private(short_path: Path) -> None:
    directory = DataDirectory.open(short_path / "a" / "b")
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    directory.close()


def test_a_file_in_its_place_is_said_in_one_line(short_path: Path) -> None:
    (short_path / "data").touch()
    with pytest.raises(StoreError, match=r"^cannot keep data in [^\n]*data: .*--data$"):
        DataDirectory.open(short_path / "data")
    with pytest.raises(StoreError, match="Not a directory"):
        DataDirectory.open(short_path / "data" / "below")


def test_a_place_that_cannot_be_written_is_said_in_one_line() -> None:
    with pytest.raises(StoreError, match=r"^cannot keep data in /proc/self/headrace: .*--data$"):
        DataDirectory.open(Path("/proc/self/headrace"))


def test_records_that_cannot_be_read_are_said_in_one_line(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (short_path / "appendonlydir").mkdir()

    def refuse(path: Path) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    directory = DataDirectory.open(short_path)
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(StoreError, match=r"^cannot read .*appendonlydir: Permission denied; "):
        directory.check_records()
    directory.close()


def test_a_lock_that_is_a_link_is_not_followed(short_path: Path) -> None:
    (short_path / "lock").symlink_to(short_path / "elsewhere")
    with pytest.raises(StoreError, match="cannot keep data"):
        DataDirectory.open(short_path)
    assert not (short_path / "elsewhere").exists()


def test_a_file_system_without_locks_is_reported(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError, match=r"^cannot lock .*lock: No locks available; .*local disk"):
        DataDirectory.open(short_path)


def test_the_valkeys_lock_is_given_once(short_path: Path) -> None:
    directory = DataDirectory.open(short_path)
    lock = directory.lock_for_valkey()
    assert lock is not None
    assert directory.lock_for_valkey() is None
    os.close(lock)
    again = directory.lock_for_valkey()
    assert again is not None
    os.close(again)
    directory.close()


def test_the_socket_is_in_the_directory(short_path: Path) -> None:
    directory = DataDirectory.open(short_path)
    assert directory.socket() == short_path / "sock"
    directory.close()


@pytest.mark.parametrize("surplus", [0, 1])
def test_107_bytes_are_the_most_a_socket_takes(short_path: Path, surplus: int) -> None:
    room = SOCKET_PATH_BYTES - len("/sock") - len(os.fspath(short_path)) - 1
    directory = DataDirectory.open(short_path / ("é" * (room // 2) + "x" * (room % 2 + surplus)))
    assert (directory.socket().parent == directory.path) == (surplus == 0)
    directory.remove_socket()
    directory.close()


def test_a_long_directory_has_its_socket_in_a_private_folder(short_path: Path) -> None:
    directory = DataDirectory.open(long_directory(short_path))
    assert len(os.fspath(directory.path)) == 200
    socket = directory.socket()
    assert len(os.fsencode(socket)) <= SOCKET_PATH_BYTES
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    assert directory.socket() == socket, "an orphan could not be found otherwise"

    socket.touch()
    directory.remove_socket()
    assert not socket.parent.exists()
    directory.close()


def test_a_copy_of_a_directory_does_not_share_the_folder_of_the_original(short_path: Path) -> None:
    original = DataDirectory.open(long_directory(short_path))
    socket = original.socket()
    shutil.copytree(original.path, original.path.with_name("e" * 120))
    copy = DataDirectory.open(original.path.with_name("e" * 120))
    assert copy.socket() != socket
    copy.remove_socket()
    assert socket.parent.exists()
    original.remove_socket()
    copy.close()
    original.close()


@pytest.mark.parametrize("attack", ["link", "open", "gone"])
def test_a_recorded_folder_is_used_only_when_it_is_still_private(short_path: Path, attack: str) -> None:
    directory = DataDirectory.open(long_directory(short_path))
    folder = directory.socket().parent
    folder.rmdir()
    if attack == "link":
        (short_path / "trap").mkdir(mode=0o700)
        folder.symlink_to(short_path / "trap")
    elif attack == "open":
        folder.mkdir()
        folder.chmod(0o755)
    assert directory.socket().parent != folder
    directory.remove_socket()
    directory.close()
    if attack == "link":
        folder.unlink()
    elif attack == "open":
        folder.rmdir()


def test_a_long_folder_for_temporary_files_is_passed_over(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = short_path / ("t" * 100)
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(temporary))
    directory = DataDirectory.open(long_directory(short_path))
    assert directory.socket().parent.parent == Path("/tmp")
    directory.remove_socket()
    directory.close()


def test_a_long_log_is_put_aside(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datadir, "_LOG_BYTES", 10)
    directory = DataDirectory.open(short_path)
    directory.put_log_aside()
    directory.log.write_text("short")
    directory.put_log_aside()
    assert directory.log.exists()
    directory.log.write_text("longer than that")
    directory.put_log_aside()
    assert [file.name for file in short_path.glob("valkey.log*")] == ["valkey.log.old"]
    directory.close()


def modes(path: Path) -> dict[str, int]:
    return {found.name: stat.S_IMODE(found.stat().st_mode) for found in path.iterdir()}


def test_files_are_closed_to_other_users(short_path: Path) -> None:
    """As of an earlier version, or of a copy made with another umask; the directory is its maker's to close."""
    short_path.chmod(0o755)
    (short_path / "appendonlydir").mkdir(0o755)
    (short_path / "journal").touch(0o644)
    (short_path / "valkey.log").touch(0o664)
    (short_path / "notes.txt").touch(0o644)
    for name, mode in (("journal", 0o644), ("valkey.log", 0o664), ("notes.txt", 0o644)):
        (short_path / name).chmod(mode)
    with structlog.testing.capture_logs() as logged:
        DataDirectory.open(short_path).close()
        DataDirectory.open(short_path).close()
    assert modes(short_path) == {
        "appendonlydir": 0o700, "journal": 0o600, "valkey.log": 0o600, "lock": 0o600, "notes.txt": 0o644,
    }  # fmt: skip
    first, *others = logged
    assert first["files"] == ["appendonlydir", "valkey.log", "journal"]
    assert [line["mode"] for line in others] == ["755", "755"]
    assert stat.S_IMODE(short_path.stat().st_mode) == 0o755


def test_a_full_disk_does_not_keep_the_lock_from_being_taken(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start on a full disk fails later, with a better message: the pid is only for messages."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        first = DataDirectory.open(short_path)
    with pytest.raises(DataDirectoryBusy, match="in use by another server"):
        DataDirectory.open(short_path)
    first.close()
    DataDirectory.open(short_path).close()
