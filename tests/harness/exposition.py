"""A page of metrics, as the parser of Prometheus' own client reads it."""

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(page: bytes) -> Samples:
    """Every series of a page; fails on one that is there twice."""
    found: Samples = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, key
            found[key] = sample.value
    return found
