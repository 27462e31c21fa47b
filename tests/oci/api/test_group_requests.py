"""Errors of a group for clients."""

import re

from headrace.broker.coordinator.instances import InstanceError, InstanceProblem
from headrace.oci.api.group_requests import of_instance_error


def test_every_problem_of_a_group_has_an_answer() -> None:
    for kind in InstanceProblem:
        for by_cursor in (True, False):
            error = of_instance_error(InstanceError(kind, "what it is about", 7), by_cursor=by_cursor)
            assert 400 <= error.status < 600
            assert error.code
            assert "{" not in error.message


def test_the_words_for_a_lost_partition() -> None:
    problem = InstanceError(InstanceProblem.UNRESERVED_PARTITION, "lost", 3)
    error = of_instance_error(problem, by_cursor=True)
    assert (error.status, error.code, error.message) == (
        400, "InvalidParameter", "Trying to commit unreserved partition 3",
    )  # fmt: skip
    # What Oracle's own Node-RED node looks for.
    assert re.search(r"cursor.*expir|expir.*cursor|unreserved partition", error.message, re.IGNORECASE)
