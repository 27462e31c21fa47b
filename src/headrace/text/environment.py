"""What variables of the environment say to readers of the storage, to Spark, and to processes that Headrace starts.

What they say to the server and to client commands is read by `headrace.server.config`, together with flags, the
configuration file and profiles. Spark needs none of that, and imports neither the broker nor a listener to find Redis.
Each function takes the environment as a mapping; None: this process's.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PREFIX: Final = "HEADRACE_"
"""What the variables of Headrace begin with."""


def redis_url(environ: Mapping[str, str] | None = None) -> str | None:
    """Where readers of the storage look for it: `HEADRACE_REDIS`, else None."""
    return _variables(environ).get(PREFIX + "REDIS")


def java_places(environ: Mapping[str, str] | None = None) -> tuple[str | None, str | None]:
    """Where Spark's Java may be: `JAVA_HOME`, and the search path of programs."""
    variables = _variables(environ)
    return variables.get("JAVA_HOME"), variables.get("PATH")


def worker_python(environ: Mapping[str, str] | None = None) -> str | None:
    """The Python that Spark's workers are to run, if the environment names one: `PYSPARK_PYTHON`."""
    return _variables(environ).get("PYSPARK_PYTHON")


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where clients keep what lasts: `~/.local/state/headrace`, or below `XDG_STATE_HOME`."""
    variables = _variables(environ)
    home = variables.get("XDG_STATE_HOME") or Path(variables.get("HOME") or "~").expanduser() / ".local" / "state"
    return Path(home).absolute() / "headrace"


def child_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a process of Headrace that flags configure in full: without the HEADRACE variables."""
    return {name: text for name, text in _variables(environ).items() if not name.startswith(PREFIX)}


def _variables(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if environ is None else environ
