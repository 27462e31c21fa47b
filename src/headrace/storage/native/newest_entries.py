"""The newest entries of a plain stream, without what is in them."""

from collections.abc import AsyncIterator

from headrace.storage.native.reply_errors import checked
from headrace.storage.redis.script_calls import Scripts

_AT_ONCE, _BYTES_AT_ONCE = 1_000, 512 << 10
"""What one call looks at: Redis serves nobody else meanwhile."""


async def newest(scripts: Scripts, stream: str) -> AsyncIterator[list[tuple[bytes, int]]]:
    """The id of each entry of the stream with this key and its bytes, from the newest back, a piece at a time.

    Raises:
        NotAStream, StorageUnavailable.
    """
    end, more = "+", 1
    while more:
        ids, more, sizes = checked(await scripts.call("native_ids", [stream], end, _AT_ONCE, _BYTES_AT_ONCE))
        if ids:
            yield list(zip(ids, sizes, strict=True))
            end = f"({ids[-1].decode()}"
