"""Backups of a data directory: of a running server under load, of damaged ones, and onto a full disk."""

import errno
import os
import threading
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from tests.harness.member import commit, position
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch, opened

from headrace.kafka.errors import Code
from headrace.storage.errors import StoreError
from headrace.storage.journal.journal import Journal
from headrace.storage.valkey import backup
from headrace.storage.valkey.backup import PARTIAL, back_up
from headrace.storage.valkey.datadir import MANIFEST, RECORDS
from headrace.testing import Server

pytestmark = pytest.mark.servers


class Writer:
    """Produces numbered records until it is stopped."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged = 0

    def _run(self) -> None:
        with Wire(self._server.kafka) as wire:
            while not self._stopped.is_set():
                value = b"%d " % self.acknowledged + bytes(500)
                assert wire.produce("flights", batch(value)).error_code == Code.NONE
                self.acknowledged += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()


def numbers(server: Server) -> list[int]:
    found: list[int] = []
    with Wire(server.kafka) as wire:
        while records := [record.value for record in opened(wire.fetch("flights", len(found)).records)]:
            found += [int((value or b"").split()[0]) for value in records]
    return found


def test_a_backup_under_load_has_everything_that_was_acknowledged_before_it(tmp_path: Path) -> None:
    before = {}
    with Server(tmp_path / "data") as running, Wire(running.kafka) as wire:
        wire.create("flights")
        with Writer(running) as writer, redis.Redis.from_url(running.storage) as store:
            for turn in range(4):
                wait_for(lambda: writer.acknowledged > 200 * (turn + 1), "records")  # noqa: B023
                assert commit(wire, "readers", "flights", 50 * turn) == Code.NONE
                before[turn] = writer.acknowledged
                if turn % 2:
                    store.bgrewriteaof()  # its files change during the copy
                assert back_up(tmp_path / "data", tmp_path / f"backup-{turn}").size > 0
    for turn, least in before.items():
        with Server(tmp_path / f"backup-{turn}") as restored:
            found = numbers(restored)
            assert found == list(range(len(found)))
            assert len(found) >= least
            with Wire(restored.kafka) as wire:
                assert position(wire, "readers", "flights")[0] == 50 * turn
                assert wire.produce("flights", batch(b"0")).base_offset == len(found)
            assert "damaged" not in restored.log()


def test_a_stopped_server_is_backed_up_privately(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as running, Wire(running.kafka) as wire:
        wire.create("flights")
        assert wire.produce("flights", batch(b"7")).error_code == Code.NONE
    back_up(tmp_path / "data", tmp_path / "backup")
    files = [each for each in (tmp_path / "backup").rglob("*") if each.is_file()]
    assert {each.stat().st_mode & 0o077 for each in [tmp_path / "backup", *files]} == {0}
    assert not any(each.name in {"lock", "sock", "valkey.lock", "storage.password"} for each in files)
    with Server(tmp_path / "backup") as restored:
        assert numbers(restored) == [7]


def made(folder: Path) -> Path:
    """A data directory with one record file of 3 MiB, and no server."""
    (folder / RECORDS).mkdir(parents=True)
    (folder / RECORDS / "a.base.rdb").write_bytes(bytes(3 << 20))
    (folder / RECORDS / "a.incr.aof").write_bytes(b"incr")
    (folder / RECORDS / MANIFEST).write_text("file a.base.rdb seq 1 type b\nfile a.incr.aof seq 1 type i\n")
    return folder


def refused(data: Path, target: Path) -> str:
    with pytest.raises(StoreError) as caught:
        back_up(data, target)
    assert not target.with_name(target.name + PARTIAL).exists() or "exists" in str(caught.value)
    return str(caught.value)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("there", "link"):
        assert refused(data, tmp_path / name) == f"{tmp_path / name} exists: choose another directory"
    (tmp_path / f"b{PARTIAL}").mkdir()
    assert "another backup is running, or was killed" in refused(data, tmp_path / "b")
    assert (tmp_path / f"b{PARTIAL}").exists()
    assert not (tmp_path / "b").exists()


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    assert "has no records" in refused(tmp_path, tmp_path / "b")
    assert "has no records" in refused(tmp_path / "none", tmp_path / "b")
    data = made(tmp_path / "data")
    assert "No such file or directory" in refused(data, tmp_path / "none" / "b")
    (data / RECORDS / MANIFEST).write_text("file ../../secret seq 1 type b\n")
    assert "is not supported" in refused(data, tmp_path / "b")
    (data / RECORDS / MANIFEST).unlink()
    assert f"has no {MANIFEST}" in refused(data, tmp_path / "b")
    (data / "journal").write_bytes(b"something else" * 1000)
    assert "is damaged, or no journal" in refused(data, tmp_path / "b")


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = made(tmp_path / "data")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert refused(data, tmp_path / "b").endswith("Nothing is kept: make room, or choose another disk")
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


def test_files_of_a_finished_rewrite_are_left_out(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    with (data / RECORDS / MANIFEST).open("a") as manifest:
        manifest.write("file gone.aof seq 1 type h\n")
    back_up(data, tmp_path / "b")
    assert "gone" not in (tmp_path / "b" / RECORDS / MANIFEST).read_text()
    assert (tmp_path / "b" / RECORDS / "a.base.rdb").stat().st_size == 3 << 20


def test_files_that_are_replaced_while_they_are_opened_are_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = made(tmp_path / "data")
    real = backup.listed_file

    def rewriting(line: str) -> str:
        monkeypatch.setattr(backup, "listed_file", real)
        (data / RECORDS / "b.incr.aof").write_bytes(b"later")
        (data / RECORDS / "a.incr.aof").unlink()
        (data / RECORDS / MANIFEST).write_text("file a.base.rdb seq 1 type b\nfile b.incr.aof seq 2 type i\n")
        return real(line)

    monkeypatch.setattr(backup, "listed_file", rewriting)
    back_up(data, tmp_path / "b")
    assert sorted(each.name for each in (tmp_path / "b" / RECORDS).iterdir()) == ["a.base.rdb", MANIFEST, "b.incr.aof"]


def test_a_torn_copy_of_the_journal_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = made(tmp_path / "data")
    Journal.open(data / "journal", 1 << 20).close()
    real, looks = Journal.found, []

    def damaged_first(self: Journal) -> Any:
        looks.append(self)
        found = real(self)
        return found._replace(damaged=[range(1, 2)]) if len(looks) == 1 else found

    monkeypatch.setattr(Journal, "found", damaged_first)
    back_up(data, tmp_path / "b")
    assert len(looks) == 2
    monkeypatch.setattr(Journal, "found", lambda self: real(self)._replace(damaged=[range(1, 2)]))
    assert "back up again at lower write load" in refused(data, tmp_path / "c")
