"""One file per Kafka API, each with one registration line; ApiVersions and the docs are built from these."""

import importlib
import pkgutil


def load() -> None:
    """Import every API file, so that all of them are registered."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
