"""Answers as they are written: few pieces, large ones uncopied."""

import asyncio
from typing import Any

from headrace.security.tls import writes as tls

_SMALL = 2_048
"""Chunks below so many bytes are joined before they are written."""


def write(transport: asyncio.Transport, chunks: list[Any]) -> None:
    """Write the chunks of the answers that are due, in one go."""
    if len(chunks) == 1:
        tls.write(transport, chunks[0])
    elif chunks:
        size = sum(map(len, chunks))
        if size < _SMALL:
            transport.write(b"".join(chunks))
        elif tls.in_pieces(transport, size):
            for chunk in _coalesce(chunks):
                tls.write(transport, chunk)
        else:
            transport.writelines(_coalesce(chunks))


def _coalesce(chunks: list[Any]) -> list[Any]:
    """Join neighbouring small chunks, so that a vectored write has few entries; large ones pass uncopied."""
    out: list[Any] = []
    small: list[Any] = []
    for chunk in chunks:
        if len(chunk) < _SMALL:
            small.append(chunk)
            continue
        if small:
            out.append(small[0] if len(small) == 1 else b"".join(small))
            small = []
        out.append(chunk)
    if small:
        out.append(small[0] if len(small) == 1 else b"".join(small))
    return out
