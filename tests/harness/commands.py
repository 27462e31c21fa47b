"""A `headrace` command that runs while a test does something else."""

import os
import signal
import subprocess
import sys
from typing import Self


class Command:
    """`headrace <words>` as a process of its own, killed at the end of the block if it has not ended by itself."""

    def __init__(self, address: str, *words: str) -> None:
        """Start it against the server whose Kafka listener has this address."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"HEADRACE_BOOTSTRAP": address, "PYTHONUNBUFFERED": "1"},
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stdin = self._process.stdin
        self.out = self._process.stdout
        self.err = self._process.stderr

    def write_line(self, line: str, *, last: bool = False) -> None:
        """Write a line to its input; after the last one its input ends."""
        self._stdin.write(f"{line}\n")
        self._stdin.flush()
        if last:
            self._stdin.close()

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def status(self) -> int:
        """How it ended, once it has."""
        return self._process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.__exit__(None, None, None)


def run(address: str, *words: str, stdin: str = "") -> None:
    """Run `headrace <words>` to its end; anything but status 0 raises CalledProcessError."""
    subprocess.run(
        [sys.executable, "-m", "headrace", *words],
        input=stdin,
        env=os.environ | {"HEADRACE_BOOTSTRAP": address},
        stdout=subprocess.DEVNULL,
        text=True,
        timeout=60,
        check=True,
    )
