"""Processes that end with their parent."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its starter has gone")
def test_a_child_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    # The starter says its child's pid and waits; the child would wait for ever.
    (tmp_path / "waiting.py").write_text("import signal; print('up', flush=True); signal.pause()")
    program = (
        "import os, subprocess, sys\n"
        "command = [sys.executable, '-m', 'headrace.server.child', str(os.getpid()), 'waiting']\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=sys.argv[1])\n"
        "child.stdout.readline(); print(child.pid, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        descriptor = os.pidfd_open(int(starter.stdout.readline()))
        starter.kill()
    try:
        # A descriptor of a process can be read when the process has ended.
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        assert ended.poll(120_000)
    finally:
        os.close(descriptor)
