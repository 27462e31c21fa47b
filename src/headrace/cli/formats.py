"""`--format` of `records tail`: a text with placeholders, as kcat has them, filled from a record. Pure."""

import re
from collections.abc import Callable

from headrace.cli.record_lines import Record
from headrace.text import times
from headrace.text.escaping import shown

Part = Callable[[str, int, int, Record], bytes]
"""(topic, partition, offset, record) -> bytes of the line."""


def _size(data: bytes | None) -> bytes:
    """-1 for nothing at all, as kcat has it."""
    return str(-1 if data is None else len(data)).encode()


def _headers(record: Record) -> bytes:
    if record.headers is None:
        return b"?"
    return b",".join(name.encode("utf-8", "surrogateescape") + b"=" + (value or b"") for name, value in record.headers)


PLACEHOLDERS: dict[str, tuple[str, Part]] = {
    "t": ("topic", lambda topic, _p, _o, _r: topic.encode("utf-8", "surrogateescape")),
    "p": ("partition", lambda _t, partition, _o, _r: str(partition).encode()),
    "o": ("offset", lambda _t, _p, offset, _r: str(offset).encode()),
    "k": ("key", lambda _t, _p, _o, record: record.key or b""),
    "v": ("value (%s too)", lambda _t, _p, _o, record: record.value or b""),
    "h": ("headers, NAME=VALUE with commas between", lambda _t, _p, _o, record: _headers(record)),
    "T": (
        "timestamp in milliseconds",
        lambda _t, _p, _o, record: str(-1 if record.timestamp is None else record.timestamp).encode(),
    ),
    "d": (
        "time in the local zone",
        lambda _t, _p, _o, record: b"-" if record.timestamp is None else times.local(record.timestamp).encode(),
    ),
    "K": ("bytes of the key, -1: none", lambda _t, _p, _o, record: _size(record.key)),
    "V": ("bytes of the value, -1: none (%S too)", lambda _t, _p, _o, record: _size(record.value)),
}
_SAME = {"s": "v", "S": "V"}
"""kcat's letters where rpk has others."""
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(?P<letter>.?)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.?)|(?P<text>[^%\\]+)", re.DOTALL)


def describe() -> str:
    """The placeholders, for the help."""
    return ", ".join(f"%{letter} {what}" for letter, (what, _) in PLACEHOLDERS.items())


def compile_format(text: str) -> Part:
    r"""What fills a format such as `%p/%o %k: %v\n`.

    Raises:
        ValueError: a placeholder or an escape that there is none of.
    """
    parts: list[Part] = []
    for token in _TOKEN.finditer(text):
        if token["text"] is not None:
            parts.append(_constant(token["text"].encode("utf-8", "surrogateescape")))
        elif token["hex"] is not None:
            parts.append(_constant(bytes.fromhex(token["hex"])))
        elif token["escape"] is not None:
            if token["escape"] not in _ESCAPES:
                raise ValueError(f"expected \\n, \\t, \\r, \\0, \\xHH or \\\\, found {token[0]!r}")
            parts.append(_constant(_ESCAPES[token["escape"]]))
        elif token["letter"] == "%":
            parts.append(_constant(b"%"))
        else:
            letter = _SAME.get(token["letter"], token["letter"])
            if letter not in PLACEHOLDERS:
                raise ValueError(f"expected one of {describe()}, %% for a percent sign, found {token[0]!r}")
            parts.append(PLACEHOLDERS[letter][1])
    return lambda topic, partition, offset, record: b"".join(part(topic, partition, offset, record) for part in parts)


def _constant(data: bytes) -> Part:
    return lambda _topic, _partition, _offset, _record: data


def for_terminal(line: bytes) -> str:
    """A filled line that does a terminal no harm: line ends and tabs stay, else what does not print is escaped."""
    pieces = re.split(rb"([\n\t])", line)
    return "".join(shown(piece) if piece not in {b"\n", b"\t"} else piece.decode() for piece in pieces)
