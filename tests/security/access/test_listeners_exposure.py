"""Off loopback, clients need a login and encryption, unless the configuration explicitly allows otherwise."""

import pytest

from headrace.security.access.listeners import Exposed, is_loopback, refusal

LOOPBACK = ["127.0.0.1", "127.9.9.9", "::1", "::1%lo"]
ELSEWHERE = ["0.0.0.0", "::", "10.0.0.1", "192.168.1.1", "fe80::1%eth0", "broker.example.org", ""]


def exposed(host: str, *, encrypted: bool, login: bool) -> Exposed:
    return Exposed(
        where=f"--kafka {host}", host=host, encrypted=encrypted, login=login, why="all get in", remedy="use TLS"
    )


@pytest.mark.parametrize("host", LOOPBACK)
def test_on_loopback_everything_will_do(host: str) -> None:
    assert is_loopback(host)
    assert refusal([exposed(host, encrypted=False, login=False)], insecure=False) is None


@pytest.mark.parametrize("host", ELSEWHERE)
@pytest.mark.parametrize(("encrypted", "login"), [(False, False), (True, False), (False, True)])
def test_anywhere_else_it_takes_encryption_and_a_login(host: str, encrypted: bool, login: bool) -> None:
    assert not is_loopback(host)
    open_to_all = exposed(host, encrypted=encrypted, login=login)
    fine = exposed(host, encrypted=True, login=True)
    why = "what it sends and takes is not encrypted" if login else "all get in"
    told = refusal([exposed("127.0.0.1", encrypted=False, login=False), fine, open_to_all], insecure=False)
    assert told == (
        f"--kafka {host} is open to other machines, and {why}: listen on 127.0.0.1, or use TLS, "
        "or say that this is meant with --set headrace.insecure=true"
    )
    assert refusal([open_to_all], insecure=True) is None
    assert refusal([fine, fine], insecure=False) is None
