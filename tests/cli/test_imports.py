"""Imports of commands: the hidden modules are not found, and everything is restored afterwards."""

import gc
import importlib
import subprocess
import sys

import pytest

from headrace.cli import main
from headrace.cli.imports import lean


def test_hidden_modules_are_not_found() -> None:
    assert "turtle" not in sys.modules
    with lean("turtle", "json"):
        assert not gc.isenabled()
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("turtle")
        importlib.import_module("json")  # it was there before
    assert gc.isenabled()
    assert "turtle" not in sys.modules


def test_where_nothing_is_new_nothing_is_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("freeze", "get_freeze_count", "unfreeze"):
        monkeypatch.delattr(gc, name)
    with lean("turtle", "json"):
        importlib.import_module("json")
    assert gc.isenabled()


def test_an_error_leaves_nothing_behind() -> None:
    with pytest.raises(ZeroDivisionError), lean("turtle"):
        raise ZeroDivisionError
    assert gc.isenabled()
    assert "turtle" not in sys.modules


def test_a_command_keeps_no_garbage_of_the_process_that_it_runs_in() -> None:
    kept = gc.get_freeze_count()
    assert main.run(["topics", "--help"]) == 0
    assert gc.get_freeze_count() <= kept


def test_what_was_imported_is_among_the_old_and_has_not_been_walked() -> None:
    program = """
import gc
from headrace.cli.imports import lean

walks = []
gc.callbacks.append(lambda phase, _: walks.append(phase))
with lean():
    import headrace.server.app
assert len(gc.get_objects(generation=2)) > 30_000
assert gc.get_freeze_count() == 0
assert not walks
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_server_without_logins_and_tls_loads_nothing_for_them() -> None:
    """Modules for logins and TLS are loaded at the start, before the first client needs them."""
    program = """
import sys
from headrace.server import app
from headrace.sasl.listener import ListenerLogins
from headrace.security.tls.contexts import Tls

given = dict.fromkeys(("broker", "users", "pools", "tokens", "is_pool_name", "clock"))
times = {"delay_ms": 0, "lifetime_ms": 0}
ListenerLogins(**given, **times, required=False, mechanisms=("PLAIN", "OAUTHBEARER"))
assert not {"scramp", "cryptography.x509"} & sys.modules.keys()
ListenerLogins(**given, **times, required=True, mechanisms=("PLAIN", "SCRAM-SHA-256"))
assert "scramp" in sys.modules
Tls(None, None)
assert "cryptography.x509" in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
