"""What `.ci/run` says of what it could not run, and when it is ended."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

ROOT = Path(__file__).parents[2]

HANGING = """
case $* in
  "test LANE=pure"|"test LANE=redis-cluster")
    head -c 300000 /dev/zero | tr '\\0' x
    echo
    echo "the end of $2"
    exec 3>"$ALIVE"
    echo >"$HANGING"
    exec sleep 600;;
esac
"""
"""`make` for whom a target of each lane hangs, once it has said more than a pipe takes at a time."""


def prepare(folder: Path, **programs: str) -> dict[str, str]:
    """Put `.ci/run` into a folder; gives the environment in which it finds these programs, by their text."""
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    found = folder / "programs"
    found.mkdir()
    for name, text in programs.items():
        (found / name).write_text(f"#!/bin/sh\n{text}\n")
        (found / name).chmod(0o700)
    return {**os.environ, "PATH": f"{found}:{os.environ['PATH']}"}


NOT_ALLOWED = """
case $2 in
  LANE=network|LANE=full-disk) echo "== NOT RUN: make $*: no rights";;
esac
"""
"""`make` on a machine that gives no rights, as tests/project/test_lanes.py has it say."""


@pytest.mark.parametrize("allowed", [True, False])
def test_missing_rights_of_the_machine_are_reported(tmp_path: Path, allowed: bool) -> None:
    """Tests that need networks or mounted file systems do not pass silently where these are not allowed."""
    own = prepare(tmp_path, make="exit 0" if allowed else NOT_ALLOWED)
    ended = subprocess.run([tmp_path / ".ci/run"], env=own, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    last = ended.stdout.splitlines()[-3:-1]
    assert [line for line in last if line.startswith("== NOT RUN")] == (
        []
        if allowed
        else ["== NOT RUN: make test LANE=network: no rights", "== NOT RUN: make test LANE=full-disk: no rights"]
    )


@pytest.mark.parametrize("target", ["test", "test LANE=delays", "test LANE=pure", "test LANE=kafka", "lint"])
def test_a_failure_in_any_lane_fails_the_run(tmp_path: Path, target: str) -> None:
    own = prepare(tmp_path, make=f'test "$*" != "{target}"')
    ended = subprocess.run([tmp_path / ".ci/run"], env=own, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f"== FAILED: make {target}\n" in ended.stdout
    assert "== make test LANE=long" in ended.stdout


@pytest.mark.parametrize(
    ("told", "again", "status"), [(signal.SIGALRM, signal.SIGTERM, 124), (signal.SIGINT, signal.SIGINT, 130)]
)
def test_who_ends_it_is_shown_how_far_its_lanes_came(
    tmp_path: Path, told: signal.Signals, again: signal.Signals, status: int
) -> None:
    """`timeout` takes SIGALRM for the end of its time. It signals the run twice; here once more as a log is shown."""
    hanging, alive = tmp_path / "hanging", tmp_path / "alive"
    os.mkfifo(hanging)
    os.mkfifo(alive)
    own = prepare(tmp_path, make=HANGING)
    own |= {"HANGING": str(hanging), "ALIVE": str(alive), "CI_LIMIT_S": "600"}
    # A separate reader would see the end of file between two writers.
    with hanging.open("r+b", buffering=0) as begun, opened_early(alive) as left:
        running = subprocess.Popen([tmp_path / ".ci/run"], env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            assert running.stdout is not None
            assert begun.readline() + begun.readline() == b"\n\n"
            while not running.stdout.readline().startswith(b"== make test LANE=long"):
                assert running.poll() is None
            running.send_signal(told)
            while not running.stdout.readline().startswith(b"== GIVEN UP"):
                assert running.poll() is None
            os.killpg(running.pid, again)
            shown = running.communicate(timeout=60)[0].decode()
            assert left.read() == b""  # once all processes of the lane have ended
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    assert running.returncode == status, shown
    assert "the end of LANE=pure" in shown
    assert "the end of LANE=redis-cluster" in shown
    assert "(of at most 600)" in shown


def test_a_python_is_found_by_its_version(tmp_path: Path) -> None:
    """On PATH, where a shim may be that starts nothing; else where pyenv has it."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    programs = tmp_path / "programs"
    kept = tmp_path / "versions" / f"{own}.99" / "bin"
    for folder, text in ((programs, "exit 127"), (kept, f'exec "{sys.executable}" "$@"')):
        folder.mkdir(parents=True)
        name = f"python{own}" if folder == programs else "python"
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o700)
    variables = {"PATH": str(programs), "PYENV_ROOT": str(tmp_path)}

    def found(version: str) -> tuple[int, str]:
        command = [str(ROOT / ".ci/python"), version]
        ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
        return ended.returncode, ended.stdout.strip()

    assert found(own) == (0, str(kept / "python"))
    assert found("2.0") == (1, "")


def opened_early(fifo: Path) -> BinaryIO:
    """Open it for reading before anybody writes; reads wait."""
    opened = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(opened, True)
    return os.fdopen(opened, "rb")
