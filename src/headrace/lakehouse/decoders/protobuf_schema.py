"""Compile `.proto` files, and turn messages into kinds of columns."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import count as numbers
from pathlib import Path, PurePosixPath
from typing import Any, Final

from headrace.client.errors import OptionError
from headrace.lakehouse.decoders.kinds import (
    BOOL,
    BYTES,
    DEEPEST,
    FLOAT,
    INSTANT,
    INT,
    JSON,
    TEXT,
    UINT64,
    Kind,
    array,
    mapping,
    struct,
)
from headrace.lakehouse.write.columns import MOST_COLUMNS

TIMESTAMP: Final = "google.protobuf.Timestamp"
_COMPILE_S: Final = 60.0
_MAIN: Final = "value{}.proto"
_SAID: Final = re.compile(r"\S+\.proto:.*")
"""A message of the compiler about a file; its libraries print other lines."""


def compiled(text: str, where: str, others: Mapping[str, str] | None = None, folder: str | None = None) -> bytes:
    """Compile a `.proto` text with imports in `others`, by name, and in `folder`. Raise OptionError."""
    try:
        from grpc_tools import protoc  # noqa: PLC0415  # an extra
    except ImportError:
        raise OptionError(f"{where}: reading .proto needs grpcio-tools: pip install 'headrace[schemas]'") from None
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


def message_named(pool: Any, files: Any, message: str | None, indexes: tuple[int, ...]) -> Any:
    """Return a message's descriptor by name, or by index in the last file. Raise OptionError."""
    last = files.file[-1]
    names = [f"{last.package}.{one.name}".lstrip(".") for one in last.message_type]
    if message is not None:
        try:
            return pool.FindMessageTypeByName(message)
        except KeyError:
            raise OptionError(f"no message {message!r}; there are: {', '.join(names)}") from None
    if not names:
        raise OptionError("the file has no message")
    if not indexes and len(names) > 1:
        raise OptionError(f"which message? --schema-message NAME; there are: {', '.join(names)}")
    wanted = indexes or (0,)
    if wanted[0] >= len(names):
        raise OptionError(f"message {wanted[0]} of a file that has {len(names)}")
    found = pool.FindMessageTypeByName(names[wanted[0]])
    for place in wanted[1:]:
        if place >= len(found.nested_types):
            raise OptionError(f"message {place} in {found.full_name}, which has {len(found.nested_types)}")
        # The compiler makes a message for each map's entries, which only some producers count.
        if any(one.GetOptions().map_entry for one in found.nested_types[: place + 1]):
            raise OptionError(
                f"message {place} in {found.full_name} may be one of two: producers differ in whether they count its "
                "maps; say which one: --schema-message NAME"
            )
        found = found.nested_types[place]
    return found


def kind_of(descriptor: Any) -> Kind:
    """Return a message's struct. Raise ValueError."""
    if not descriptor.fields:
        raise ValueError(f"{descriptor.full_name} has no fields: columns come from a message's fields")
    return _message(descriptor, ())


def _message(descriptor: Any, above: tuple[str, ...]) -> Kind:
    inside = (*above, descriptor.full_name)
    fields = []
    count = 0
    for one in descriptor.fields:
        fields.append((one.name, _field(one, inside)))
        count += fields[-1][1].leaves
        if count > MOST_COLUMNS:
            raise ValueError(f"field {one.full_name}: a table has at most {MOST_COLUMNS:,} columns")
    return struct(fields)


def _field(one: Any, above: tuple[str, ...]) -> Kind:
    message = one.message_type
    if message is not None and message.GetOptions().map_entry:
        return mapping(_single(message.fields_by_name["key"], above), _single(message.fields_by_name["value"], above))
    kind = _single(one, above)
    return array(kind) if one.is_repeated else kind


def _single(one: Any, above: tuple[str, ...]) -> Kind:
    message = one.message_type
    if message is not None:
        if message.full_name == TIMESTAMP:
            return INSTANT
        return JSON if is_json(message, above) else _message(message, above)
    if one.cpp_type == one.CPPTYPE_STRING:
        return BYTES if one.type == one.TYPE_BYTES else TEXT
    kinds = {
        one.CPPTYPE_BOOL: BOOL,
        one.CPPTYPE_DOUBLE: FLOAT,
        one.CPPTYPE_FLOAT: FLOAT,
        one.CPPTYPE_ENUM: TEXT,
        one.CPPTYPE_UINT64: UINT64,
    }
    return kinds.get(one.cpp_type, INT)


def is_json(message: Any, above: tuple[str, ...]) -> bool:
    """Return whether a message has no fields, contains itself, or is nested too deeply."""
    return not message.fields or message.full_name in above or len(above) >= DEEPEST or _contains_itself(message)


def _contains_itself(message: Any) -> bool:
    seen: set[str] = set()
    left = [message]
    while left:
        for one in left.pop().fields:
            inner = one.message_type
            if inner is None:
                continue
            if inner.full_name == message.full_name:
                return True
            if inner.full_name not in seen:
                seen.add(inner.full_name)
                left.append(inner)
    return False
