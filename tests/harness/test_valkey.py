from pathlib import Path

import pytest
import redis

from headrace.storage.errors import StoreError
from tests.harness.valkey import valkey


def test_a_valkey_without_an_event_loop_keeps_its_data_in_the_given_folder(tmp_path: Path) -> None:
    for expected in (1, 2):
        with valkey(tmp_path) as url, redis.Redis.from_url(url) as link:
            assert link.incr("starts") == expected


def test_why_it_did_not_start_is_raised(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot keep data"), valkey(tmp_path / "file"):
        pass
