"""One file per operation, or per resource. Each registers itself."""

import importlib
import pkgutil


def load() -> None:
    """Import every file, so that all operations are registered."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
