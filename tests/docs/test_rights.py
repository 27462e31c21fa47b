"""The matrix of rights: every request has its effects, and needs at least what they take."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest


def _loaded() -> Any:
    path = Path(__file__).parents[2] / "docs" / "rights.py"
    spec = importlib.util.spec_from_file_location("rights", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


rights = _loaded()
ROUTES = list(rights.routes())


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.interface}-{route.name}")
def test_a_request_needs_what_its_effects_take(route: Any) -> None:
    needs = {rights.Place(rule.operation, rule.type) for rule in route.needs}
    for effect in route.effects:
        enough = rights.LEAST.get(effect)
        assert enough is None or any(least <= needs for least in enough), effect.value
        if effect is rights.Effect.ADOPTS:
            assert any(rule.of_server for rule in route.needs)


def test_every_effect_is_of_a_request_that_exists() -> None:
    found = {(route.interface, route.name) for route in ROUTES}
    assert found == {(interface, name) for interface, names in rights.EFFECTS.items() for name in names}
    assert {effect for route in ROUTES for effect in route.effects} == set(rights.Effect)
