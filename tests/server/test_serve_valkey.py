"""`--valkey PATH`: another program than the bundled one, started, taken over and replaced like it."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import redis
from tests.harness.redis import debian_redis_program, valkey_program
from tests.harness.wire import Wire, batch

from headrace.kafka.errors import Code
from headrace.server.config import StartError
from headrace.storage.journal.journal import Journal
from headrace.storage.logs.replay import replay
from headrace.storage.redis.connection import Connection
from headrace.testing import InProcessServer, Server, ServerFailed


def serves(started: Server, records: int) -> None:
    with Wire(started.kafka) as client:
        if not records:
            client.create("flights")
        assert client.fetch("flights", 0).high_watermark == records
        assert client.produce("flights", batch(b"x")).error_code == Code.NONE


def program_of(started: Server) -> Path:
    return Path(f"/proc/{started.storage_pid}/exe").readlink()


def test_a_copy_of_the_bundled_one(tmp_path: Path) -> None:
    mine = Path(shutil.copy(valkey_program(), tmp_path / "valkey-server-mine"))
    with Server(tmp_path / "data", ["--valkey", str(mine)]) as started:
        serves(started, 0)
        assert program_of(started) == mine
        pid = started.storage_pid
        started.kill()
        started.start()
        assert started.storage_pid == pid, "it is taken over"
        serves(started, 1)
    with Server(tmp_path / "data") as started:
        serves(started, 2)
        assert program_of(started) == valkey_program().resolve()


@pytest.mark.apt
def test_debians_redis(tmp_path: Path) -> None:
    with Server(tmp_path / "data", ["--valkey", str(debian_redis_program())]) as started:
        serves(started, 0)
        with redis.Redis.from_url(started.storage) as link:
            assert link.info("server")["redis_version"].startswith("7.")
        started.restart()
        serves(started, 1)


@pytest.mark.parametrize("wrong", ["nothing", "folder", "text", "false"])
def test_a_failed_start_is_reported_in_one_line(tmp_path: Path, wrong: str) -> None:
    place = tmp_path / wrong
    if wrong == "folder":
        place.mkdir()
    elif wrong == "text":
        place.write_text("no program")
    elif wrong == "false":
        place.symlink_to("/bin/false")
    refusal = Server(tmp_path / "data", ["--valkey", str(place)])
    with pytest.raises(ServerFailed, match="status 1 before it was ready"):
        refusal.start()
    last = refusal.log().splitlines()[-1]
    assert last.startswith("headrace: ")
    assert "--valkey" in last or "the embedded Valkey ended" in last


def test_the_end_of_valkey_during_the_replay_is_reported_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    async def overtaken(
        connection: Connection, epoch: int, journal: Journal, size: int, *, empty: bool
    ) -> Journal | None:
        about: bytes = await connection.call("INFO", "server")
        ended.append(int(about.partition(b"process_id:")[2].split()[0]))
        os.kill(ended[-1], signal.SIGKILL)
        return await replay(connection, epoch, journal, size, empty=empty)

    monkeypatch.setattr("headrace.storage.storage.replay", overtaken)
    with pytest.raises(StartError) as refused:
        InProcessServer(tmp_path / "data").start()
    assert f"the embedded Valkey (pid {ended[0]}) ended" in str(refused.value)
    assert str(refused.value).endswith("; start again")
