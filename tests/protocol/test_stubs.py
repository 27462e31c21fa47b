"""The checked-in type stubs are those the tables give."""

from headrace.protocol.stubs import TARGET, write_stubs


def test_stubs_are_up_to_date() -> None:
    """Run `python -m headrace.protocol.stubs` when this fails."""
    assert TARGET.read_text(encoding="utf-8") == write_stubs()
