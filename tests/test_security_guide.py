"""What the guide to security shows is run: from nothing to a server with TLS and users, and a client that logs in."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from headrace.testing import Server
from tests.harness.pages import Shell, lines, steps

GUIDE = (Path(__file__).parent.parent / "docs" / "guides" / "security.md").read_text("utf-8")
SAID = "127.0.0.1:9093"


def test_the_way_from_nothing_to_a_client_that_logs_in(tmp_path: Path) -> None:
    chosen = list(steps(GUIDE))
    (at,) = (number for number, (command, _) in enumerate(chosen) if command.startswith("headrace serve"))
    for command, promised in chosen[:at]:
        ended = subprocess.run(
            ["bash", "-ec", command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
        assert lines(ended.stdout) == lines(promised)
    # Tests listen on loopback only, and on free ports.
    serve = chosen[at][0].replace("\\\n", " ").replace("0.0.0.0:9093", "127.0.0.1:0")
    arguments = [
        each.replace("certificates/", f"{tmp_path}/certificates/").replace("first-user", f"{tmp_path}/first-user")
        if each != "--bootstrap-user"
        else each
        for each in shlex.split(serve)[2:]
    ]
    with Server(tmp_path / "data", arguments) as started:
        page = GUIDE.replace(SAID, started.kafka)
        shell = Shell(tmp_path, started, page)
        rest = list(steps(page))[at + 1 :]
        assert [lines(shell.run(command)) for command, _ in rest] == [lines(output) for _, output in rest]
        assert len(rest) == 10
        for name in ("first-user", "jane.password"):
            assert (tmp_path / name).read_text().strip().rpartition(":")[2] not in started.log()
