"""The OpenAPI description and its page have every operation."""

import re
from pathlib import Path

from tests.oci.conftest import Api

from headrace.oci.api.registry import OPERATIONS


def test_the_description_is_served_and_has_every_operation(api: Api) -> None:
    described = api.done("GET", "/openapi.json")
    found = {each["operationId"] for path in described["paths"].values() for each in path.values()}
    assert found == set(OPERATIONS)
    assert len(found) == 30
    texts = str(described)
    for reference in re.findall(r"'#/components/([^']+)'", texts):
        kind, _, name = reference.partition("/")
        assert name in described["components"][kind]


def test_the_page_has_every_operation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "oci-operations.md").read_text("utf-8")
    assert [name for name in OPERATIONS if f"| [{name}](#{name.lower()}) |" not in page] == []
