"""Commands that fetch what they build with from elsewhere."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

GO_BUILD = ("go", "build", "-gcflags=all=-N -l")
"""Without optimizing, which takes more than a third of a build and gives nothing to a program that runs for seconds."""
_TRIES = 3
_PAUSE_S = 10.0


def run(command: Sequence[str], folder: Path | None = None, *, each_s: float) -> None:
    """Run one in a folder, again where it fails or takes longer than `each_s`: registries have bad moments.

    Raises:
        RuntimeError: with what it said last.
    """
    said = ""
    for tried in range(_TRIES):
        time.sleep(tried * _PAUSE_S)
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=each_s, check=False)
        except subprocess.TimeoutExpired as late:
            said = str(late)
            continue
        if done.returncode == 0:
            return
        said = done.stdout + done.stderr
    raise RuntimeError(said)
