"""Import the dependencies of commands quickly: they take most of the start."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from types import ModuleType

UNINVITED = ("rich", "opentelemetry")
"""Packages that structlog and redis-py import if installed but a server does not need: a sixth of a start."""


@contextlib.contextmanager
def lean(*uninvited: str) -> Iterator[None]:
    """Import without the garbage collector, which would take a tenth of a start.

    `uninvited` packages are hidden from libraries until the end, unless already imported.
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
            # Moves new objects to the oldest generation, which the next collection does not scan. Counting frozen
            # objects takes 20 ms with thousands of tests.
            if len(modules) > before and gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()
        for name in hidden:
            del modules[name]
