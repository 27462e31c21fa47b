"""Files that a server reads at its start, damaged: it ends with one line that names the file, or starts."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_DAMAGES: dict[str, Callable[[Path], object]] = {
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfe\x80\n"),
    "a directory": lambda path: path.mkdir(),
}
_FILES: dict[str, Callable[[Path], list[str]]] = {
    "config.toml": lambda path: ["--config", str(path)],
    "first-user": lambda path: ["--bootstrap-user", str(path)],
    "server.pem": lambda path: [
        "--set", "listeners=SSL://127.0.0.1:0", "--set", f"ssl.keystore.location={path}",
    ],
    "tokens": lambda path: [
        "--set", f"oci.auth.tokens={path}", "--set", f"oci.auth.keys={path.parent}", "--set", "oci.auth=verify",
    ],
    "keys": lambda path: ["--set", f"oci.auth.keys={path}", "--set", "oci.auth=verify"],
    "redis.password": lambda path: ["--redis", "redis://127.0.0.1:1", "--redis-password-file", str(path)],
    "redis-ca.pem": lambda path: ["--redis", "rediss://127.0.0.1:1", "--redis-ca", str(path)],
    "jwks.json": lambda path: ["--set", f"sasl.oauthbearer.jwks.endpoint.url=file://{path}"],
    **dict.fromkeys(
        ("data/storage.password", "data/lock", "data/valkey.lock", "data/socket", "data/journal", "data/valkey.log"),
        lambda _: [],
    ),
}  # fmt: skip


def ended_or_ready(command: list[str]) -> tuple[str, int | None, str]:
    """The first line of a server's output, its status (None: it had to be stopped), and what it wrote to stderr."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert running.stdout is not None
    first = running.stdout.readline()
    status = None if first else running.wait(60)
    running.terminate()
    _, told = running.communicate(timeout=60)
    return first, status, told


@pytest.mark.parametrize("name", _FILES)
def test_a_damaged_file_ends_the_start_with_one_line_or_does_no_harm(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    for damage, make in _DAMAGES.items():
        folder = tmp_path_factory.mktemp("f")
        (folder / "data").mkdir(mode=0o700)
        path = folder / name
        make(path)
        kafka = [] if name == "server.pem" else ["--kafka", "127.0.0.1:0"]
        place = [*kafka, "--http", "127.0.0.1:0", "--data", str(folder / "data")]
        first, status, told = ended_or_ready([sys.executable, "-m", "headrace", "serve", *place, *_FILES[name](path)])
        case = f"{name}, {damage}: {told}"
        assert "Traceback" not in told, case
        if first:
            assert first.startswith("ready "), case
        else:
            assert status in {1, 2}, case
            assert [line for line in told.splitlines() if path.name in line or "127.0.0.1:1" in line], case
