"""Imports of commands: what is not wanted is not found meanwhile, and all is as before afterwards."""

import gc
import importlib
import sys

import pytest

from headrace.cli import main
from headrace.cli.imports import lean


def test_what_is_not_invited_is_not_found_meanwhile() -> None:
    assert "turtle" not in sys.modules
    with lean("turtle", "json"):
        assert not gc.isenabled()
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("turtle")
        importlib.import_module("json")  # it was there before
    assert gc.isenabled()
    assert "turtle" not in sys.modules


def test_an_error_leaves_nothing_behind() -> None:
    with pytest.raises(ZeroDivisionError), lean("turtle"):
        raise ZeroDivisionError
    assert gc.isenabled()
    assert "turtle" not in sys.modules


def test_a_command_keeps_no_garbage_of_the_process_that_it_runs_in() -> None:
    kept = gc.get_freeze_count()
    assert main.run(["topics", "--help"]) == 0
    assert gc.get_freeze_count() == kept
