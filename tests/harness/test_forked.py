"""Servers that are forked are what the command would have been."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import Server, ServerFailed, server
from tests.harness.forked import forked_servers


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_it_is_stopped_killed_and_started_again_as_any_other() -> None:
    with forked_servers(), server() as started:
        assert parent(started.pid) != os.getpid()
        first = started.pid
        started.restart()
        assert started.pid != first
        started.kill()
        assert not started.running
        started.start()
        os.kill(started.pid, signal.SIGKILL)
        assert started.wait(60) == -signal.SIGKILL
        started.start()  # and takes over its storage, which would otherwise keep running


def test_what_it_says_and_its_status_are_the_commands(tmp_path: Path) -> None:
    said = []
    for name, how in (("forked", forked_servers()), ("command", contextlib.nullcontext())):
        broken = Server(tmp_path / name, ["--set", "num.partitions=none"])
        with how, pytest.raises(ServerFailed, match="ended with status 2"):
            broken.start()
        said.append(broken.log())
    assert said[0] == said[1] != ""


def test_it_has_the_variables_that_it_is_given(tmp_path: Path) -> None:
    given = Server(tmp_path / "data", environment={"HEADRACE_SET": "num.partitions=none"})
    with forked_servers(), pytest.raises(ServerFailed, match=r"num\.partitions"):
        given.start()


def test_under_other_circumstances_it_is_the_command() -> None:
    with forked_servers():
        with server(environment={"TZ": "Asia/Tokyo"}) as started:
            assert parent(started.pid) == os.getpid()
        with server(environment={"SPARK_LOCAL_IP": "127.0.0.1"}) as started:
            assert parent(started.pid) != os.getpid()


def test_no_package_is_imported_that_the_command_does_not() -> None:
    program = """
import sys
from tests.harness.forking import import_all

import_all()
print(*(name for name, module in sys.modules.items() if hasattr(module, "__file__")))
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    with server(environment={"PYTHONPROFILEIMPORTTIME": "1"}) as started:
        started.stop()
        log = started.log()
    timed = [line.rpartition("|")[2] for line in log.splitlines() if line.startswith("import time:")]
    imported = {each.strip().partition(".")[0] for each in timed}
    assert {"headrace", "uvloop"} <= imported
    # Of what is in C not everything is timed.
    forked = {each.partition(".")[0] for each in told.split() if not each.startswith("_")}
    assert forked - imported - {"tests"} == set()
