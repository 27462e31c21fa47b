"""Imports of what a command needs: they are most of what it takes to start."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from types import ModuleType

UNINVITED = ("rich", "opentelemetry")
"""What structlog and redis-py import where it is installed, for what a server does not use: a sixth of a start."""


@contextlib.contextmanager
def lean(*uninvited: str) -> Iterator[None]:
    """Import without the garbage collector: nothing of it is garbage, and walking it takes a tenth of a start.

    Args:
        uninvited: packages that libraries shall not find meanwhile; those that were imported before stay.
    """
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]  # None: cannot be imported
    hidden = [name for name in uninvited if name not in modules]
    modules.update(dict.fromkeys(hidden))
    before = len(modules)
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            # The next collection would walk all that is new; this has it among the old, unwalked. Counting what is
            # frozen walks that, too: where thousands of tests are, for 20 ms.
            if len(modules) > before and gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()
        for name in hidden:
            del modules[name]
