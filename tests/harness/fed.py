"""A program that gets its input line by line while a test does something else."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_END_S = 240


class Fed:
    """It runs from the beginning of the block, and is killed at its end if it has not ended by itself."""

    def __init__(
        self, command: Sequence[str], folder: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Prepare; what it prints goes into files in `folder`, so that it never waits for a reader."""
        self._command = command
        self._out, self._err = folder / "out", folder / "err"
        self._cwd, self._env = cwd, env

    def __enter__(self) -> Self:
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                self._command, 0, stdin=subprocess.PIPE, stdout=out, stderr=err, cwd=self._cwd, env=self._env
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def feed(self, lines: Sequence[str]) -> None:
        """Give it these lines; they must fit into a pipe (64 KiB), so that nothing waits for the program."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        except BrokenPipeError:
            raise AssertionError(self.said()) from None

    def runs(self) -> bool:
        """Whether it has not ended; otherwise an AssertionError has its output."""
        assert self._process.poll() is None, self.said()
        return True

    def said(self) -> str:
        """All that it has printed."""
        return self._out.read_text() + self._err.read_text()

    def result(self) -> Any:
        """End its input and wait until it ends well; the JSON of its last line."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.said()}") from None
        assert status == 0, self.said()
        return json.loads(self._out.read_text().splitlines()[-1])
