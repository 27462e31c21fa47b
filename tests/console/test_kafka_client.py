"""Forms that change something: only with `console.write=true`, and with numbers that are numbers."""

import pytest
from tests.console.visiting import Visit, ask, create

from headrace.console.kafka_client import Rejected, whole_number
from headrace.testing import InProcessServer


def test_a_read_only_console_has_no_form() -> None:
    with InProcessServer(oci_auth="off") as server:
        create(server, ("t", 1))
        assert "/produce" not in ask(server, "/topics/t").html
        answers = [ask(server, "/topics/t/produce"), Visit(server).post("/topics/t/produce", {"value": "v"})]
        assert {each.status for each in answers} == {403}
        assert all(b"start the server with --set console.write=true" in each.body for each in answers)


@pytest.mark.parametrize("given", ["", "-1", "1.5", "٣", "1" * 10, "x" * 5000, "1_0"])
def test_a_number_is_whole(given: str) -> None:
    assert whole_number(" 1,000 ", "Partitions") == 1000
    with pytest.raises(Rejected, match="Partitions: expected a whole number, found "):
        whole_number(given, "Partitions")
