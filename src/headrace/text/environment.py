"""Environment variables for readers of the storage, Spark, and processes that Headrace starts.

`headrace.server.config` reads those of the server and client commands. Spark imports neither the broker nor a listener.
Each function takes the environment as a mapping. None: that of this process.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PREFIX: Final = "HEADRACE_"
"""Prefix of Headrace's variables."""


def redis_url(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the storage URL for readers, if set: `HEADRACE_REDIS`."""
    return _variables(environ).get(PREFIX + "REDIS")


def java_places(environ: Mapping[str, str] | None = None) -> tuple[str | None, str | None]:
    """Return where to look for Java: `JAVA_HOME` and `PATH`."""
    variables = _variables(environ)
    return variables.get("JAVA_HOME"), variables.get("PATH")


def worker_python(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the Python of Spark's workers, if set: `PYSPARK_PYTHON`."""
    return _variables(environ).get("PYSPARK_PYTHON")


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of client state: `~/.local/state/headrace`, or below `XDG_STATE_HOME`."""
    variables = _variables(environ)
    home = variables.get("XDG_STATE_HOME") or Path(variables.get("HOME") or "~").expanduser() / ".local" / "state"
    return Path(home).absolute() / "headrace"


def child_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment without HEADRACE variables, for a process that flags configure in full."""
    return {name: text for name, text in _variables(environ).items() if not name.startswith(PREFIX)}


def _variables(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if environ is None else environ
