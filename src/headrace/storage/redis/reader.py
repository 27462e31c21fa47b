"""Reads Redis' replies from the bytes of a connection."""

from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import hiredis

PENDING: Final = object()
"""Instead of a reply that is not whole yet."""
MALFORMED: Final = hiredis.ProtocolError
"""Raised for bytes that are no RESP."""
_CHUNK = 1 << 20
_SCRATCH = 256 << 10
_KEEP_BUFFER = 4 << 20
"""How large hiredis' own buffer may stay between replies."""

MakeError = Callable[[str], Exception]
"""Makes the reply of an error from its text."""


class Reader(Protocol):
    """Takes bytes where it says, gives replies: bytes, int, list, None, what `MakeError` made."""

    def room(self) -> memoryview:
        """Where the next bytes go; it must be let go of before `gets`."""

    def received(self, count: int, /) -> None:
        """So many bytes were put there."""

    def gets(self, views: bool, /) -> Any:
        """The next reply, or PENDING.

        Args:
            views: values of some size, 2 KiB or more, may be writable views of the memory that they were received in,
                which nobody else looks at: each is the caller's own. They hold the chunk around them in memory.

        Raises:
            hiredis.ProtocolError: what was received is no RESP.
        """


class CopyingReader:
    """A reader that copies every value."""

    def __init__(self, error: MakeError) -> None:
        self._reader = hiredis.Reader(notEnoughData=PENDING, replyError=error)
        self._reader.setmaxbuf(_KEEP_BUFFER)
        self._scratch = memoryview(bytearray(_SCRATCH))

    def room(self) -> memoryview:
        """Where the next bytes go."""
        return self._scratch

    def received(self, count: int, /) -> None:
        """So many bytes were put there."""
        self._reader.feed(cast("bytes", self._scratch[:count]))

    def gets(self, _views: bool, /) -> Any:
        """The next reply, or PENDING."""
        return self._reader.gets()


try:
    import headrace.storage.redis._reader as _compiled  # mypy finds the stub only by this form
except ImportError:  # no compiler when Headrace was installed
    _compiled = None  # type: ignore[assignment]


def make_reader(error: MakeError) -> Reader:
    """A reader, in C where there is a compiler."""
    return CopyingReader(error) if _compiled is None else _compiled.Reader(PENDING, error, MALFORMED, _CHUNK)
