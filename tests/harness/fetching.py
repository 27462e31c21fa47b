"""Commands that fetch what they build with from elsewhere."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

_TRIES = 3


def run(command: Sequence[str], folder: Path | None = None, *, each_s: float) -> None:
    """Run one in a folder, again where it fails: registries have bad moments.

    Raises:
        RuntimeError: with its words.
        subprocess.TimeoutExpired: a try took longer than `each_s`.
    """
    for _ in range(_TRIES):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=each_s, check=False)
        if done.returncode == 0:
            return
    raise RuntimeError(done.stdout + done.stderr)
