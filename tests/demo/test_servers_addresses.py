import socket

import pytest

from headrace.demo.servers import choose_address


def test_the_default_address_if_it_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = f"127.0.0.1:{taken.getsockname()[1]}"
    assert choose_address(None, free) == (free, False)


def test_a_free_port_if_the_default_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert choose_address(None, f"127.0.0.1:{taken.getsockname()[1]}") == ("127.0.0.1:0", True)


def test_what_was_asked_for_is_not_changed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        asked = f"127.0.0.1:{taken.getsockname()[1]}"
        assert choose_address(asked, "127.0.0.1:1") == (asked, False)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        choose_address("nonsense", "127.0.0.1:9092")
