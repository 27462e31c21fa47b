"""A real server for tests, on free ports, in a process or in a thread of the test.

Names are imported on first use: pytest imports this package for its plugin.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.testing.clock import MovableClock
    from headrace.testing.inprocess import InProcessServer
    from headrace.testing.process import Addresses, Server, ServerFailed, server

__all__ = ["Addresses", "InProcessServer", "MovableClock", "Server", "ServerFailed", "server"]

_MODULES = {"InProcessServer": "inprocess", "MovableClock": "clock"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'process')}")
    found: object = getattr(module, name)
    globals()[name] = found
    return found
