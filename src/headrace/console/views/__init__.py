"""One file for each page, which registers itself."""

from importlib import import_module


def load() -> None:
    """Register all pages."""
    for name in (
        "overview",
        "topics",
        "records",
        "produce",
        "topic_forms",
        "groups",
        "pipeline",
        "brokers",
        "users",
        "acls",
        "quotas",
        "transactions",
    ):
        import_module(f"{__name__}.{name}")
