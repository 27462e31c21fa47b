"""One module per Kafka API. ApiVersions and the reference page are built from their registrations."""

import importlib
import pkgutil


def load() -> None:
    """Import every module, which registers its API."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
