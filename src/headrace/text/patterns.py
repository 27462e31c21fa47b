r"""Regular expressions of clients, which may be hostile. RE2 matches in linear time.

Kafka uses RE2/J, which has the same syntax except for `\C`. The wording of its errors differs.
"""

from typing import Final

MOST_BYTES: Final = 1 << 10
"""Maximum bytes of a pattern."""
_MOST_MEMORY: Final = 256 << 10
"""Maximum bytes of a compiled pattern and its matching. RE2's default is 8 MiB."""
_MOST_INSTRUCTIONS: Final = 2_048
"""Maximum instructions of a compiled pattern.

A match takes time for each byte of the text and each instruction. With 19,000, 1 KiB of text took 0.6 s.
"""


class InvalidPattern(ValueError):
    """Not a regular expression of RE2, or too large."""


class Pattern:
    """A compiled regular expression."""

    __slots__ = ("_regexp",)

    def __init__(self, pattern: str) -> None:
        """Compile a pattern.

        Raises:
            InvalidPattern: It is not valid, or too large. The message is RE2's.
        """
        # The import takes milliseconds, and most servers receive no patterns.
        import re2  # noqa: PLC0415

        encoded = pattern.encode("utf-8", "surrogatepass")
        if len(encoded) > MOST_BYTES:
            raise InvalidPattern(f"a pattern has at most {MOST_BYTES:,} bytes")
        options = re2.Options()
        options.log_errors = False  # it would write to stderr
        options.max_mem = _MOST_MEMORY
        options.never_capture = True  # captures are slow, and not read
        try:
            self._regexp = re2.compile(encoded, options)
        except re2.error as error:
            (message,) = error.args
            raise InvalidPattern(
                message.decode("utf-8", "replace") if isinstance(message, bytes) else message
            ) from None
        finally:
            # The module would keep the memory of the last 128 patterns.
            re2.purge()

        if self._regexp.programsize > _MOST_INSTRUCTIONS:
            raise InvalidPattern("the compiled pattern is too large")

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches the whole text."""
        return self._regexp.fullmatch(text.encode("utf-8", "surrogatepass")) is not None
