"""`--valkey PATH`: another program than the bundled one, started, taken over and replaced like it."""

import shutil
from pathlib import Path

import pytest
import redis

from headrace.kafka.errors import Code
from headrace.testing import Server, ServerFailed
from tests.harness.redis import debian_redis_program, valkey_program
from tests.harness.wire import Wire, batch


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
def test_what_cannot_be_started_is_said_in_one_line(tmp_path: Path, wrong: str) -> None:
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
