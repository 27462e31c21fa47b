"""What other users of the machine must not see: records in files, and the password of a Redis."""

import os
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import redis
from tests.harness.redis import RedisServer
from tests.harness.redis_tls import rules_in
from tests.harness.wire import Wire, batch

from headrace.kafka.errors import Code
from headrace.server.config import SettingsError, load
from headrace.storage.redis.url import has_password, without_password
from headrace.testing import Server, server

SECRET = "correct-horse-battery"


def test_no_file_of_the_data_is_open_to_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with Server(tmp_path / "new" / "data") as started, Wire(started.kafka) as client:
            client.create("flights")
            assert client.produce("flights", batch(b"x")).error_code == Code.NONE
            started.restart()
            found = [started.data, *started.data.rglob("*")]
            open_to_others = {str(path): oct(path.stat().st_mode) for path in found if path.stat().st_mode & 0o077}
            assert open_to_others == {}
            assert any(stat.S_ISREG(path.stat().st_mode) and "aof" in path.name for path in found)
    finally:
        os.umask(before)


def test_the_password_of_a_redis_is_nowhere_to_be_seen(tmp_path: Path) -> None:
    with RedisServer(options={"requirepass": SECRET}) as external:
        url = f"unix://:{SECRET}@{external.socket}?db=3"
        with (
            server(
                data=tmp_path / "data", environment={"HEADRACE_REDIS": url}, arguments=["--log-level", "debug"]
            ) as started,
            Wire(started.kafka) as client,
        ):
            client.create("flights")
            assert client.produce("flights", batch(b"x")).error_code == Code.NONE
            assert started.storage == f"unix://{external.socket}?db=3"
            everything = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
            assert SECRET not in everything.replace(f"--requirepass {SECRET}", "")
            # What it says of a Redis that goes away, too.
            external.kill()
            assert client.produce("flights", batch(b"x")).error_code != Code.NONE
            started.logged("connection to Redis lost")
        assert SECRET not in started.log()


def test_a_user_of_redis_whose_password_is_in_a_file(tmp_path: Path) -> None:
    secret = "p@ss:w/rd %?#"
    file = tmp_path / "password"
    file.write_text(f"{secret}\nanother line\n")
    with RedisServer() as external:
        with redis.Redis(unix_socket_path=str(external.socket)) as admin:
            # As docs/guides/external-redis.md has it: no more than what it needs.
            admin.execute_command(
                "ACL", "SETUSER", "headrace", "on", f">{secret}", *rules_in("external-redis.md").split()
            )
            admin.execute_command("ACL", "SETUSER", "default", "off")
        url = f"unix://headrace@{external.socket}"
        with (
            server(data=tmp_path / "data", arguments=["--redis", url, "--redis-password-file", str(file)]) as started,
            Wire(started.kafka) as client,
        ):
            client.create("flights")
            client.create("plain", headrace_storage="native")
            for topic in ("flights", "plain"):
                assert client.produce(topic, batch(b"x")).error_code == Code.NONE
                assert b"x" in bytes(client.fetch(topic, 0).records or b"")
                client.delete(topic)
            assert started.storage == f"unix://headrace@{external.socket}"
            with urllib.request.urlopen(f"{started.http}/metrics") as metrics:
                assert metrics.status == 200
            everything = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
            assert secret not in everything
        for forbidden in (secret, "NOPERM", "in --redis is visible"):
            assert forbidden not in started.log()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--redis-password-file", "FILE"], "is about a Redis of your own: give --redis too"),
        (["--redis", f"redis://:{SECRET}@127.0.0.1:1", "--redis-password-file", "FILE"], "has a password, too"),
        (["--redis", "redis://127.0.0.1:1", "--redis-password-file", "FILE.none"], "No such file"),
        (["--redis", "redis://127.0.0.1:1", "--redis-ca", "FILE"], "there is no TLS without --redis rediss://"),
        (["--redis", "rediss://127.0.0.1:1", "--redis-ca", "FILE.none"], "No such file"),
        (["--redis", "rediss://127.0.0.1:1?ssl_ca_certs=x", "--redis-ca", "FILE"], "has ssl_ca_certs, too"),
    ],
)
def test_a_password_or_an_authority_that_cannot_be_used(tmp_path: Path, arguments: list[str], why: str) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    names = iter(arguments)
    flags = {
        flag.removeprefix("--"): value.replace("FILE", str(file)) for flag, value in zip(names, names, strict=True)
    }
    with pytest.raises(SettingsError, match=why) as caught:
        load(flags, environ={})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@127.0.0.1:1/0",
        f"redis://jane:{SECRET}@127.0.0.1:1/0",
        f"unix:///nowhere?password={SECRET}",
        f"rediss://127.0.0.1:1?password={SECRET}",
        f"http://jane:{SECRET}@127.0.0.1",
        f"redis://jane:{SECRET}@[::1",
        f"redis://{SECRET}@127.0.0.1:1",
        f"redis://jane:{SECRET}@127.0.0.1:port",
    ],
)
@pytest.mark.parametrize("by", ["flag", "variable", "file"])
def test_no_refusal_repeats_a_password(tmp_path: Path, url: str, by: str) -> None:
    command = [sys.executable, "-m", "headrace", "serve", "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    environment = {"PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    if by == "flag":
        command += ["--redis", url]
    elif by == "variable":
        environment["HEADRACE_REDIS"] = url
    else:
        (tmp_path / "headrace.toml").write_text(f'redis = "{url}"\n')
        command += ["--config", str(tmp_path / "headrace.toml")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert ended.returncode in (1, 2), ended
    assert SECRET not in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_password_on_the_command_line_is_warned_of() -> None:
    with RedisServer(options={"requirepass": SECRET}) as external:
        url = f"unix://:{SECRET}@{external.socket}"
        with server(redis=url) as started:
            assert SECRET not in started.logged("set the URL in HEADRACE_REDIS instead")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/3", "redis://127.0.0.1:6379/3"),
        (f"redis://:{SECRET}@[::1]:6379/3", "redis://[::1]:6379/3"),
        (f"redis://jane:{SECRET}@host", "redis://jane@host"),
        (f"redis://jane:{SECRET}%40@host/1?password={SECRET}&db=2", "redis://jane@host/1?db=2"),
        (f"unix:///a%20b/sock?db=3&password={SECRET}", "unix:///a%20b/sock?db=3"),
    ],
)
def test_a_url_as_it_may_be_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
    assert has_password(url) == (SECRET in url)
