"""Compile `.proto` files. It needs grpcio-tools, and no other extra."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import count as numbers
from pathlib import Path, PurePosixPath
from typing import Final

from headrace.client.errors import ModuleMissing, OptionError
from headrace.text import extras

_COMPILE_S: Final = 60.0
_MAIN: Final = "value{}.proto"
_SAID: Final = re.compile(r"\S+\.proto:.*")
"""A message of the compiler about a file; its libraries print other lines."""
_ABSENT: Final = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)


def compiled(text: str, where: str, others: Mapping[str, str] | None = None, folder: str | None = None) -> bytes:
    """Compile a `.proto` text with imports in `others`, by name, and in `folder`. Raise OptionError, ModuleMissing."""
    try:
        from grpc_tools import protoc  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise ModuleMissing(extras.explained(where, error)) from None
    include = str(Path(protoc.__file__).parent / "_proto")
    with tempfile.TemporaryDirectory(prefix="headrace-proto-") as made:
        main = _unused(others or {}, folder)
        for name, content in {**(others or {}), main: text}.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts or "\0" in name:
                raise OptionError(f"{where}: an import is called {name[:80]!r}, which is no file below a folder")
            target = Path(made) / path
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(content, "utf-8", errors="surrogatepass")
            except OSError as error:
                raise OptionError(f"{where}: an import is called {name[:80]!r}: {error.strerror}") from None
        result = Path(made) / "value.desc"
        includes = [f"-I{one}" for one in (".", *([str(Path(folder).absolute())] if folder else ()), include)]
        command = [sys.executable, "-m", "grpc_tools.protoc", *includes, "--include_imports"]
        try:
            # In a separate process: the compiler prints errors and exits.
            done = subprocess.run(
                [*command, f"--descriptor_set_out={result}", main],
                cwd=made,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_COMPILE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise OptionError(f"{where}: its compiler did not end within {_COMPILE_S:.0f} s") from None
        if done.returncode != 0:
            if (absent := _ABSENT.search(done.stderr)) is not None:
                raise ModuleMissing(extras.needs(where, absent[1], "schemas"))
            said = [found[0] for line in done.stderr.splitlines() if (found := _SAID.search(line)) is not None]
            why = said[0].removeprefix(f"{main}:").strip() if said else f"its compiler ends with {done.returncode}"
            raise OptionError(f"{where} is not a .proto file that can be compiled: {why[:300]}")
        return result.read_bytes()


def _unused(others: Mapping[str, str], folder: str | None) -> str:
    taken = {str(PurePosixPath(name)).casefold() for name in others}
    for place in numbers():
        name = _MAIN.format(place or "")
        if name not in taken and not (folder is not None and (Path(folder) / name).exists()):
            return name
    raise AssertionError("unreachable")
