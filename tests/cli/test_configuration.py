"""`headrace groups alter`: values before and after, and what is rejected."""

from typing import Any


def test_values_are_shown_before_and_after(headrace: Any) -> None:
    key = "share.delivery.count.limit"
    set_ = headrace.json("groups", "alter", "altered", "--config", f"{key}=3")
    assert set_ == {"group": "altered", "config": {key: {"before": "5", "after": "3"}}}
    committed = "share.isolation.level=read_committed"
    shown = headrace.run("groups", "alter", "altered", "--unset", key, "--config", committed)
    assert [line.split() for line in shown.splitlines()[2:]][-1] == [key, "3", "5"]
    assert "read_uncommitted  read_committed" in shown


def test_wrong_keys_and_values_change_nothing(headrace: Any) -> None:
    headrace.run("groups", "alter", "altered-2", "--config", "share.delivery.count.limits=3", status=1)
    assert headrace.err.count("did you mean share.delivery.count.limit?") == 1
    headrace.run("groups", "alter", "altered-2", "--config", "share.delivery.count.limit=1000", status=1)
    headrace.run("groups", "alter", "altered-2", status=2)
    headrace.run("groups", "alter", "altered-2", "--config", "share.isolation.level", status=2)
    same = ("--config", "share.isolation.level=read_committed", "--unset", "share.isolation.level")
    headrace.run("groups", "alter", "altered-2", *same, status=2)
    assert "is both set and unset" in headrace.err
